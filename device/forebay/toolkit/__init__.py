"""The command ``forebay``: one module per subcommand."""

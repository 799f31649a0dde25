"""Operators' commands: ``forebay admin``, one module per kind of thing. It is installed on servers, and in no notebook."""

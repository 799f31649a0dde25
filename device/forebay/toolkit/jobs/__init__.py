"""Unattended runs: `forebay submit`, `forebay jobs`, and what JupyterHub starts as the user to run one, in a server of its own."""

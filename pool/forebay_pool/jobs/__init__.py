"""Unattended runs: when they start, in servers that JupyterHub starts as their users, and what becomes of them."""

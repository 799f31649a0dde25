"""What is asked of pool, billing and JupyterHub, and what becomes of a page where one does not answer."""

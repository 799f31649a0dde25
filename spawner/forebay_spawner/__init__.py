"""JupyterHub spawners whose servers have no GPU: stock PyTorch in them sees one virtual device of the chosen flavor."""

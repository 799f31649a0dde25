"""Kernels of this environment show their virtual device before PyTorch is imported. Does nothing where FOREBAY_URL is not set."""

get_ipython().extension_manager.load_extension("forebay.notebook")  # noqa: F821 - a startup file of IPython's

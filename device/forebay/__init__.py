"""One virtual device ``cuda:0`` on stock PyTorch, served by a shared pool of real ones.

Nothing needs to import this package: where the variable ``FOREBAY_URL`` is set, ``import torch`` activates it.
"""

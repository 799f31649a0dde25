"""Those whom a service speaks with: whose turn it is, how much of it is theirs, who cannot be served, and how each knows the other."""

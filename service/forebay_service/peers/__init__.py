"""Those who want something of a service: whose turn it is, how much of it is theirs, and who cannot be served."""

"""One's own environments of packages. Each lies over the shared one: it sees all that is there, and takes what is installed."""

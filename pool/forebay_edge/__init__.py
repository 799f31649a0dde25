"""The edge: what programs outside of an installation reach, by the hub's own address, in place of their workers."""

"""A training step of small models, on the virtual device and natively."""

"""Steps whose work is divided within the batch: the parts of layers that several devices compute together."""

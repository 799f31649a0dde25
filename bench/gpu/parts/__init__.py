"""The parts, a module each, whose ``run`` takes the part's figures."""

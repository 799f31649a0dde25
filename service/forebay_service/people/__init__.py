"""People: what they are called, where mail reaches them, and which tenant they belong to."""

"""What pool, billing and hub answer, as typed rows."""

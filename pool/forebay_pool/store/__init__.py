"""What is on disk: the tables, the one writer, who leads, and the rows of sessions, workers and leases."""

"""What is shown: rows, metrics, and the stream of what changed."""

"""What everybody sees and does of one's own: usage and jobs."""

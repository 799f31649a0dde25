"""What callers get to see: JSON, HTML, CSV, PDF and FOCUS."""

"""What is read from the books, each in one snapshot."""

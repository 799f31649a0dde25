"""Where a request may go: what is free, how places rank, and when more will be free."""

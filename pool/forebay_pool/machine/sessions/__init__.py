"""Sessions: what their clients say, the rules that bind them, and how they go on after a broken link or a pool that stopped."""

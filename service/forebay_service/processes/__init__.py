"""How processes are kept running, and how they end with the one that started them."""

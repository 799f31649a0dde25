"""``forebay bill``: invoices, and whether they are what this machine's receipts say."""

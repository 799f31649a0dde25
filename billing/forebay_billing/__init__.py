"""What device time costs and who owes it: price book, usage records, double-entry ledger, statements."""

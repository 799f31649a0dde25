"""``forebay bill``: checks invoices by the receipts that this machine keeps."""

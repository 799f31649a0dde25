"""Receipts that a pool signs of this user's leases, kept on this machine so that bills can be checked by them."""

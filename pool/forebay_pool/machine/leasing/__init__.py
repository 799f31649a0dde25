"""Requests and leases: where they can be, who is next, and how leases open and close."""

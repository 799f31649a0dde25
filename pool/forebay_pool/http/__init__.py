"""The endpoints and the two WebSockets."""

"""The endpoints: one file a noun, what they read of requests, and who may call them."""

"""What is sent to billing: usage records and heartbeats, and what it answers."""

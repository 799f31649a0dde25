"""A transaction of the only writer: postings that sum to zero, the open books, idempotency, audit, and who may see what."""

"""The tables, how the database is opened, and sums of 64-bit columns."""

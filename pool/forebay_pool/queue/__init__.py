"""Who is next: the queue, accounts and quotas, fair share, backfill, and why somebody waits."""

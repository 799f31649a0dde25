"""Forebay's pool: sessions, leases, queue, placement, metering, and the launcher of workers."""

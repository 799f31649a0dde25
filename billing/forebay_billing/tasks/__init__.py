"""What runs beside the requests: months that end, reports, alerts and what open leases have cost so far."""

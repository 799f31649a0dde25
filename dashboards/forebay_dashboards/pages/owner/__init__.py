"""*Tenant*: what a tenant's administrators do themselves, a page each."""

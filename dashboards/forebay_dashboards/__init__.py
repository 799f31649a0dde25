"""Web pages over pool and billing: my usage, the tenant's spend, and the operator's tables, live by server-sent events."""

"""What pool, billing, dashboards and the hub's settings have in common: who asks, in which language, and how a service answers."""

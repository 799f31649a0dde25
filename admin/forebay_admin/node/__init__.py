"""More hosts with devices: ``forebay node``, which makes hosts nodes of the pool's Ray cluster, and lets them leave it."""

"""The state machine: events in, instructions out; no I/O, no clock, no chance.

It is one object, whose class is a chain of floors: each inherits the one below it, and a method calls methods of its own floor and of
lower ones alone. From the top, by module:

1. ``state_machine``: which floor handles which event
2. ``operations``: what operators, probes and launchers say of nodes and devices
3. ``resuming``: going on after a broken link, and where another pool stopped
4. ``sessions``: they join, ask for leases, give them back, and end
5. ``workers``: what they say, and what happens when they fail, fall silent or end
6. ``draining``: devices that are closed, and how they are emptied
7. ``revoking``: leases that are taken back, with grace
8. ``offering``: what became free is offered to whose turn it is
9. ``groups``: leases that are granted together, or not at all
10. ``granting``: from a request to a lease
11. ``queue_positions``: what those who wait are told
12. ``parking``: sessions that are parked, and the time for which they are
13. ``leases``: granted, given back, closed
14. ``core``: what the pool knows, and how it tells the world

Beside the floors stand pure functions that several of them use (``eviction``, ``messages``, ``refusals``), and what every event is checked
by (``invariants``, ``story``).
"""

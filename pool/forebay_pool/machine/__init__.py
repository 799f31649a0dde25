"""The state machine: events in, instructions out; no I/O, no clock, no chance.

It is one object, whose class is a chain of floors: each inherits the one below it, and a method calls methods of its own floor and of
lower ones alone. From the top, by module:

1. ``state_machine``: which floor handles which event
2. ``scaling``: how many nodes there should be
3. ``operations``: what operators, probes and launchers say of nodes and devices
4. ``resuming``: going on after a broken link, and where another pool stopped
5. ``sessions``: they join, ask for leases, give them back, and end
6. ``workers``: what they say, and what happens when they fail, fall silent or end
7. ``draining``: devices that are closed and how they are emptied, hosts that are drained and how parked sessions leave them
8. ``revoking``: leases that are taken back, with grace
9. ``offering``: what became free is offered to whose turn it is
10. ``groups``: leases that are granted together, or not at all
11. ``granting``: from a request to a lease
12. ``queue_positions``: what those who wait are told
13. ``parking``: sessions that are parked, and the time for which they are
14. ``leases``: granted, given back, closed
15. ``core``: what the pool knows, and how it tells the world

Beside the floors stand pure functions that several of them use (``eviction``, ``messages``, ``refusals``), and what every event is checked
by (``invariants``, ``story``).
"""

"""The state machine: events in, instructions out; no I/O, no clock, no chance.

It is made of parts. Each part is an object with attributes of its own, is given the parts that it calls, and calls those below it alone. No
part inherits another one. ``StateMachine`` and ``Scheduler`` make them, and nothing else knows all of them: two machines can live in one
process. From the top, by module:

1. ``invariants``: what must hold after every event
2. ``state_machine``: which part handles which event, and what every tick does
3. ``scaling``: how many nodes there should be
4. ``outlooks``: how long a new session would wait, and what the demand will come to
5. ``operations``: what operators, probes and launchers say of nodes and devices
6. ``sessions.confirming``: until when leases are confirmed is written
7. ``sessions.restoring``: going on where another pool stopped
8. ``sessions.worker_returns``: workers that are back after a broken link
9. ``sessions.client_returns``: clients that are back after a broken link
10. ``sessions.takeover``: what a pool before this one did and did not write
11. ``sessions.absence``: clients and workers whose links broke
12. ``sessions.clients``: what clients say
13. ``sessions.joining``: sessions that join, and that leave
14. ``sessions.forks``: sessions that begin as copies of others
15. ``sessions.unconfined_hosts``: hosts whose sandbox fails
16. ``sessions.rules``: quotas, budgets, flavors and policies that change
17. ``workers.liveness``: workers that fall silent, are late, or are not back in time
18. ``workers.workers``: what workers say of themselves and of their sessions' tensors
19. ``workers.closing``: workers say that a lease's work is over, or waits
20. ``workers.moving``: sessions that leave a worker for another one
21. ``workers.failing``: workers that fail, or are gone
22. ``workers.replays``: sessions that wait to have their work done again, and what is there to do it on
23. ``workers.ending``: sessions that end, or are lost with their worker
24. ``workers.evacuation``: hosts that are drained, and how parked sessions leave them
25. ``workers.kept_images``: images that workers kept, which one counts, and where others are to be removed
26. ``workers.draining``: devices that are closed, and how they are emptied
27. ``leasing.scheduler``: the fleet, the queue, and the parts below
28. ``leasing.revoking``: leases that are taken back, with grace
29. ``leasing.offering``: what became free is offered to the requests whose turn it is
30. ``leasing.groups``: leases that are granted together, or not at all
31. ``leasing.granting``: from a request to a lease
32. ``leasing.preparing``: room is made on a place, and a worker is readied
33. ``leasing.place_finder``: where a lease can be opened now
34. ``leasing.reservations``: what is reserved for requests that wait
35. ``leasing.worker_processes``: workers are started and dismissed
36. ``leasing.queue_positions``: what those who wait are told
37. ``leasing.parking``: sessions that are parked, and the time for which they are
38. ``leasing.leases``: opened, given back, closed, metered
39. ``base.admission``: whether leases may open at all
40. ``base.step``: the event at hand, and the instructions that it leads to
41. ``base.worklist``: what the event may have freed, until it is offered
42. ``base.story``: what happened to an object
43. ``base.refusals``: what is refused, and why
44. ``base.messages``: what worker and client are told of a session, its flavor and its lease
45. ``base.eviction``: what may be parked

**One event**, as ``StateMachine.handle`` has it:

- ``_on``: the handler of the event's type changes records, and notes in the worklist what that may have freed.
- ``offer_all``: the worklist is offered: groups, accounts with a bench, their lanes, the whole queue, seats, makes; until it is empty.
- ``end_overfull``: sessions that may not be parked end, and what they leave is offered in the same way, until none is left.
- ``follow_changes``: stretches of parked time begin and end with the sessions that changed.

**One tick**, as ``StateMachine._tick`` has it:

- ``extend_deadlines``: if the pool stood still, all deadlines move, and the next three wait for the next tick.
- ``check``: workers that are silent or late fail.
- ``give_up``: sessions whose clients did not come back end.
- ``end_awaiting``: sessions that waited for a pool before this one have asked again, or have had time to.
- ``check``: sessions whose work nothing can do again end.
- ``check``: workers that came to hold what others are to be copies of are asked for that.
- ``check``: groups that have gathered for long enough go on.
- ``end_crash_waits``: users whose calls crashed workers, and who have waited for long enough, get workers.
- ``retry``: hosts whose sandbox failed a while ago may have a process again.
- ``write``: segments that are over are metered, and confirmations are written.
- ``check``: leases whose grace period is over close, and accounts that are used up are revoked.
- ``check_deadlines``: leases on nodes whose deadline has passed are taken back.
- ``promote``: requests that waited for very long rank first.
- ``offer_again``: the queue is offered what ranks and time have changed.
- ``move_waiting``: requests whose devices stay busy move.
- ``send_all``: waiting clients are told their positions.
- ``evacuate``: parked sessions leave drained hosts.
- ``dismiss_spare``: a worker that was started ahead of need gives its slot to a request.
- ``prestart``: workers are started ahead of need.
- ``scale``: nodes are asked for and given back.
"""

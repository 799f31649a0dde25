"""The bounds and periods that the state machine keeps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLimits:
    """For how long who lost a link is waited for."""

    resume_seconds: float
    """How long a worker or a client whose link ended is waited for; 0: not at all."""
    outside_resume_seconds: float = 43_200.0
    """The same for a client outside whose link fell silent, if that is longer."""
    outage_seconds: float = 600.0
    """How long a client looks for a pool that does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLimits(LinkLimits):
    """What holds for single runtimes."""

    warm_programs: bool = True
    """Workers that are started ahead of need load what programs of JAX and TensorFlow need, too, where a flavor offers these."""
    process_retry_seconds: float = 600.0
    """A host that could not confine a process is tried again after so long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits(RuntimeLimits):
    """The bounds and periods the state machine keeps."""

    heartbeat_seconds: float
    session_heartbeat_seconds: float
    idle_release_seconds: float
    worker_start_seconds: float
    park_seconds: float
    close_seconds: float
    end_grace_seconds: float
    worker_attempts_max: int
    warm_workers: int
    workers_max: int
    sessions_max: int
    queue_max: int
    fair_share_half_life_seconds: float = 14_400.0
    wait_seconds_max: float = 3_600.0
    """A request that waited for so long goes before all that did not, whatever their priority and share."""
    backfill_seconds_max: float = 60.0
    """Later requests may pass one that waits for several devices for so long."""
    revoke_grace_seconds: float = 10.0
    call_seconds_max: float = 600.0
    """A worker in which one call of an operator has run for so long is ended: nothing else interrupts it."""
    crashes_max: int = 3
    """With so many workers that calls of a user's programs ended within an hour, the user waits before the next worker."""
    crash_wait_seconds: float = 60.0
    """How long the first time; with each further one twice as long. 0: not at all."""
    crash_wait_seconds_max: float = 600.0
    replay_seconds_max: float = 60.0
    """If a session's worker dies at most so many seconds of leases after its last image, they are done again on another; 0: never."""
    preempt_priority_gap: int = 0
    """A request revokes a lease whose priority is lower by so much; 0: never."""
    parked_host_bytes_max: int = 2**62
    """Parked tensors in the memory of one host; beyond, they are spilled to its disk."""
    spill_bytes_max: int = 0
    """Parked tensors on the disk of one host. What neither takes stays in memory."""
    move_bytes_per_second: int = 10**9
    """How fast parked tensors leave a host that is drained."""
    elastic_wait_share: float = 0.05
    """Nodes are asked for so that at most such a share of the requests waits."""
    elastic_release_seconds: float = 600.0
    """A node that has not been needed for so long is given back."""
    segment_seconds: float = 3_600.0
    """Leases are metered in segments that end so long after each full hour, again and again, and at full hours."""

"""Part ``share``: several sessions on one device, and what becomes of the others where one fails."""

from __future__ import annotations

import contextlib
import time
from concurrent.futures import ThreadPoolExecutor

from forebay_wire import messages

from gpu.figures import SESSION_COUNTS
from gpu.peer import Peer
from gpu.trial import NOT_REHEARSED, Trial
from gpu.worker import HOST, Session

MODEL = "gpt2"
MEMORY_SHARE = 0.8
"""Of the device, for all sessions together."""
UNNOTICED_BYTES = 64 << 20
RETURN_SECONDS_MAX = 10.0
KERNELS = 12
PIECES = 8
"""In which a session on two devices holds a quarter of its memory; each of them may have a copy of all."""
DIFFERENCE_MAX = 1e-3
"""Of a loss, relative."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures."""
    whole = trial.sizes.limit_bytes if trial.is_host else int(MEMORY_SHARE * trial.memory_bytes)
    most = max(trial.sizes.session_counts)
    limit_bytes = whole // (most + 1)
    with trial.native() as native, contextlib.ExitStack() as stack:
        sessions = started(trial, stack, most, limit_bytes)
        alone = losses(trial, sessions[:1])[0]
        for count in SESSION_COUNTS:
            together(trial, sessions[:count], count, alone)
        slices(trial, sessions[0], sessions[1])
        assertion(trial, sessions[0], sessions[1:], alone)
        killed(trial, native, sessions[1:], limit_bytes, alone)
        divided(trial, native, sessions[1], limit_bytes, alone)


def started(trial: Trial, stack: contextlib.ExitStack, count: int, limit_bytes: int) -> list[Session]:
    """So many sessions, which start at once. A worker ends with the thread that started it, so the threads stay."""
    threads = stack.enter_context(ThreadPoolExecutor(count))
    return list(threads.map(lambda _: stack.enter_context(trial.session(limit_bytes)), range(count)))


def losses(trial: Trial, sessions: list[Session]) -> list[list[float]]:
    """Of a training in each, at the same time."""
    for session in sessions:
        session.peer.start("models.losses", model=MODEL, steps=trial.sizes.training_steps)
    return [session.peer.finish() for session in sessions]


def alike(found: list[float], alone: list[float]) -> bool:
    """Not to the last bit: some kernels of GPUs add in whatever order their threads come."""
    return all(abs(one - other) <= DIFFERENCE_MAX * abs(other) for one, other in zip(found, alone, strict=True))


def rates(trial: Trial, sessions: list[Session]) -> list[float]:
    """Steps a second of each, at the same time."""
    seconds = 0.1 if trial.is_host else 3.0
    for session in sessions:
        session.peer.start("models.steps_within", model=MODEL, seconds=seconds)
    return [session.peer.finish() for session in sessions]


def together(trial: Trial, sessions: list[Session], count: int, alone: list[float]) -> None:
    """The same results, and the device's whole speed, evenly."""
    names = same, summed, even = (
        f"{count} sessions compute the same losses as one alone",
        f"{count} sessions, steps a second together ÷ one alone",
        f"{count} sessions, slowest ÷ fastest",
    )
    if len(sessions) < count:
        for name in names:
            trial.report.skip(name, NOT_REHEARSED)
        return
    with trial.report.figures(*names):
        trial.report.take(same, all(alike(found, alone) for found in losses(trial, sessions)))
        for session in sessions:
            session.peer.call("models.make", model=MODEL)
            session.peer.call("models.block_ms", model=MODEL, steps=trial.sizes.block_steps)
        one = rates(trial, sessions[:1])[0]
        found = rates(trial, sessions)
        trial.report.take(summed, sum(found) / one, f"{', '.join(f'{rate:.0f}' for rate in found)}, alone {one:.0f} steps/s")
        trial.report.take(even, max(found) / min(found), "by steps a second")


def slices(trial: Trial, busy: Session, waiting: Session) -> None:
    """A session with short kernels beside one with long ones."""
    name = "time slice: short step beside a long kernel, p50 ÷ alone"
    with trial.report.figures(name):
        alone = rates(trial, [waiting])[0]
        busy.peer.call("programs.begin_kernel", rows=trial.sizes.matrix, count=KERNELS)
        beside = rates(trial, [waiting])[0]
        trial.report.take(name, alone / beside, f"{1e3 / alone:.2f} ms alone, {1e3 / beside:.2f} ms beside, means")
        busy.peer.call("programs.forget")


def assertion(trial: Trial, violator: Session, others: list[Session], alone: list[float]) -> None:
    """One session does what makes a kernel assert, while the others train."""
    name = "the others are whole after a device-side assert"
    with trial.report.figures(name):
        for session in others:
            session.peer.start("models.losses", model=MODEL, steps=trial.sizes.training_steps)
        heard = violator.peer.call("programs.violate")
        found = [session.peer.finish() for session in others]
        trial.report.take(name, bool(heard) and all(alike(one, alone) for one in found), f"the session itself hears: {heard or 'nothing'}")


def killed(trial: Trial, native: Peer, others: list[Session], limit_bytes: int, alone: list[float]) -> None:
    """A worker's process is killed while it computes; the others go on, and its memory comes back."""
    whole, back, idle = (
        "the others are whole after a worker was killed in a kernel",
        "device memory is back after a worker was killed",
        "idle device memory of a worker",
    )
    with trial.report.figures(whole, back, idle):
        before = 0 if trial.is_host else native.call("programs.free_bytes")
        with trial.session(limit_bytes) as victim:
            victim.peer.call("programs.product", rows=8)
            taken = 0 if trial.is_host else before - native.call("programs.free_bytes")
            victim.peer.call("programs.begin_kernel", rows=trial.sizes.matrix, count=KERNELS)
            for session in others:
                session.peer.start("models.losses", model=MODEL, steps=trial.sizes.training_steps)
            time.sleep(0.2)
            victim.worker.kill()
            trial.report.take(whole, all(alike(session.peer.finish(), alone) for session in others))
        if trial.is_host:
            for name in (back, idle):
                trial.report.skip(name, "a host has no device memory")
            return
        trial.report.take(idle, taken / (1 << 20), "its context, libraries and kernels, with nothing held")
        missing = returned(native, before)
        trial.report.take(back, missing <= UNNOTICED_BYTES, f"{missing / (1 << 20):.0f} MiB are missing")


def divided(trial: Trial, native: Peer, single: Session, limit_bytes: int, alone: list[float]) -> None:
    """One session on two devices, or twice on the only one: what it computes, holds and gives back."""
    same, slower, whole, back = (
        "one session on two devices computes the same losses as on one",
        "one session on two devices, step ÷ on one",
        "its bytes are the same after it was parked",
        "both devices' memory is back while it is parked",
    )
    kind, _, index = trial.device.partition(":")
    other = trial.device if native.call("programs.count") < 2 else f"{kind}:{1 - int(index)}"
    with trial.report.figures(same, slower, whole, back), trial.session(limit_bytes, other) as session:
        trial.report.take(same, alike(losses(trial, [session])[0], alone), f"on {trial.device} and {other}")
        for one in (single, session):
            one.peer.call("models.make", model=MODEL)
            one.peer.call("models.block_ms", model=MODEL, steps=trial.sizes.block_steps)  # the first steps try how to divide the work
        trial.report.take(slower, rates(trial, [single])[0] / rates(trial, [session])[0])
        session.peer.call("models.discard", model=MODEL)
        for piece in range(PIECES):
            session.peer.call("programs.fill", count_bytes=limit_bytes // (4 * PIECES), name=f"held-{piece}", seed=piece)
        told = session.peer.call("programs.digest", name="held")
        session.rest()
        held = free_bytes(trial, native, other)
        session.worker.send(messages.Park(host_bytes_max=HOST[0], spill_bytes_max=HOST[1]))
        session.worker.expect(messages.Parked)
        given_back(trial, native, other, back, held, limit_bytes // 4)
        session.open()
        trial.report.take(whole, session.peer.call("programs.digest", name="held") == told)


def free_bytes(trial: Trial, native: Peer, other: str) -> int:
    """Of both devices, or of the only one."""
    return 0 if trial.is_host else sum(native.call("programs.free_bytes", of=one.replace("hip", "cuda")) for one in {trial.device, other})


def given_back(trial: Trial, native: Peer, other: str, name: str, held: int, count_bytes: int) -> None:
    """Whether so much more is free than while the session held it."""
    if trial.is_host:
        trial.report.skip(name, "a host has no device memory")
        return
    ends = time.monotonic() + RETURN_SECONDS_MAX
    while (back := free_bytes(trial, native, other) - held) < count_bytes and time.monotonic() < ends:
        time.sleep(0.2)
    trial.report.take(name, back >= count_bytes, f"{back / (1 << 20):.0f} MiB of {count_bytes / (1 << 20):.0f}")


def returned(native: Peer, before: int) -> int:
    """How much of the memory that was free before is not free again in time, in bytes."""
    ends = time.monotonic() + RETURN_SECONDS_MAX
    while (missing := before - native.call("programs.free_bytes")) > UNNOTICED_BYTES and time.monotonic() < ends:
        time.sleep(0.2)
    return int(missing)

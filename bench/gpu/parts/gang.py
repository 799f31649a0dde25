"""Part ``gang``: a training on one virtual device that is several, against the same on one; and collectives between sessions.

Those of one GPU exchange by the hosts' memory, those of several by NCCL or RCCL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from gpu.figures import CARRIERS, GANG_MODELS
from gpu.trial import Trial
from gpu.worker import Session, session_on

DEVICES_MAX = 4
MODEL_SECONDS = 15.0
"""About what a model takes, by the time limit's reckoning."""
GROUP_SECONDS = 40.0
SUM_BYTES = 64 << 20
SUM_BYTES_REHEARSED = 1 << 20
SUMS = 10
OPENED = "collectives are made by"
"""As the log of a worker says it."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures: on as many devices as there are, or twice on the only one."""
    kind = trial.device.partition(":")[0]
    with trial.native() as native:
        count = min(native.call("programs.count"), DEVICES_MAX)
        with trial.report.figures("a library opens for one rank"):
            right = native.call("collectives.alone", library="gloo" if trial.is_host else "nccl")
            trial.report.take("a library opens for one rank", right, library(trial))
    others = [f"{kind}:{index}" for index in range(count) if f"{kind}:{index}" != trial.device]
    run_models(trial, others or [trial.device])
    run_groups(trial, others)


def library(trial: Trial) -> str:
    """What takes NCCL's place in a rehearsal."""
    return "gloo in NCCL's place" if trial.is_host else "NCCL, or RCCL"


def run_models(trial: Trial, others: Sequence[str]) -> None:
    """Trainings on one session of several devices."""
    names = [f"{model} on several devices, {what}" for model in GANG_MODELS for what in ("largest difference of a loss", "step ÷ on one")]
    with trial.report.figures(*names), trial.session() as one, trial.session(None, *others) as several:
        for model in GANG_MODELS:
            trial.report.need(MODEL_SECONDS, model)
            steps = 2 * trial.sizes.training_steps  # the first ones find the batch
            mine, theirs = (session.peer.call("models.fed", model=model, steps=steps) for session in (several, one))
            losses = zip(mine["losses"], theirs["losses"], strict=True)
            apart = max(abs(found - wanted) for found, wanted in losses) / abs(theirs["losses"][0])
            devices = f"on {', '.join([trial.device, *others])}"
            trial.report.take(f"{model} on several devices, largest difference of a loss", apart, devices)
            note = f"{mine['ms']:.3g} ms, on one {theirs['ms']:.3g}"
            trial.report.take(f"{model} on several devices, step ÷ on one", mine["ms"] / theirs["ms"], note)


def run_groups(trial: Trial, others: Sequence[str]) -> None:
    """Collectives of two sessions on one device, and of one session on each of several; a rehearsal has gloo for the latter."""
    for carrier in CARRIERS:
        by_library = carrier != "hosts"
        names = [f"sessions' collectives by {carrier}, {what}" for what in ("as defined", "the same bits", "sum of 64 MiB")]
        if by_library and not others and not trial.is_host:
            for name in names:
                trial.report.skip(name, "one GPU here")
            continue
        devices = [trial.device, *others] if by_library and others else [trial.device] * 2
        chosen = ("gloo" if trial.is_host else "nccl") if by_library else "host"
        with trial.report.figures(*names):
            trial.report.need(GROUP_SECONDS, f"collectives by {carrier}")
            with members(trial, devices, chosen) as sessions:
                take_group(trial, sessions, carrier, names)


@contextlib.contextmanager
def members(trial: Trial, devices: Sequence[str], chosen: str) -> Iterator[list[Session]]:
    """A session on each device, with an open lease, in one process group."""
    limit_bytes = min(trial.sizes.limit_bytes, trial.memory_bytes // (2 * len(devices)))
    with contextlib.ExitStack() as stack:
        variables = {"FOREBAY_WORKER_COLLECTIVES": chosen}
        sessions = [stack.enter_context(session_on([device], trial.root, limit_bytes, False, variables=variables)) for device in devices]
        store = trial.root / f"store-{chosen}"
        of_all(sessions, "collectives.join", [{"rank": rank, "size": len(sessions), "store": str(store)} for rank in range(len(sessions))])
        yield sessions
        of_all(sessions, "collectives.leave", [{}] * len(sessions))


def of_all(sessions: Sequence[Session], function: str, arguments: Sequence[dict[str, object]]) -> list[object]:
    """What a function returns that all peers run at once."""
    for session, given in zip(sessions, arguments, strict=True):
        session.peer.start(function, **given)
    return [session.peer.finish() for session in sessions]


def take_group(trial: Trial, sessions: Sequence[Session], carrier: str, names: Sequence[str]) -> None:
    """The figures of a group; what should have gone by the library and did not is wrong, and the reverse."""
    as_defined, same_bits, sum_ms = names
    nothing: list[dict[str, object]] = [{}] * len(sessions)
    wrong = of_all(sessions, "collectives.wrong", nothing)
    opened = [OPENED in session.worker.log.read_text(errors="replace") for session in sessions]
    went = all(opened) if carrier != "hosts" else not any(opened)
    carried = carrier if carrier == "hosts" else library(trial)
    note = carried if went else f"they did not go by {carrier}: {sessions[0].worker.last_words()}"
    trial.report.take(as_defined, not any(wrong) and went, note if not any(wrong) else f"wrong: {wrong}")
    trial.report.take(same_bits, len(set(map(str, of_all(sessions, "collectives.bits", nothing)))) == 1)
    count_bytes = SUM_BYTES_REHEARSED if trial.is_host else SUM_BYTES
    took = of_all(sessions, "collectives.all_reduce_ms", [{"count_bytes": count_bytes, "turns": SUMS}] * len(sessions))
    trial.report.take(sum_ms, max(float(str(one)) for one in took), f"{len(sessions)} sessions")

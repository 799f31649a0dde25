"""Part ``memory``: a flavor's limit on the device, what happens beyond it, and that nobody sees what was there before."""

from __future__ import annotations

from gpu.trial import NOT_REHEARSED, Trial
from gpu.worker import Session

FULL = 0.8
"""Of the device: how much of its memory is looked at for traces."""
PIECES = 64
UNNOTICED_BYTES = 4096
"""What allocations may be rounded by."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures."""
    limit_bytes = trial.sizes.limit_bytes
    with (
        trial.report.figures(
            "the flavor's limit is kept",
            "served of the limit before it is kept",
            "an operator without workspace raises torch.OutOfMemoryError",
            "the session goes on after it, its tensors whole",
            "a large tensor fits among freed pieces as natively",
        ),
        trial.session() as session,
    ):
        keep_limit(trial, session, limit_bytes)
        lack_workspace(trial, session, limit_bytes)
        fragment(trial, session, limit_bytes)
    look_for_traces(trial)


def keep_limit(trial: Trial, session: Session, limit_bytes: int) -> None:
    """Pieces are served up to the limit, and refused beyond."""
    found = session.peer.call("programs.take_all", piece_bytes=limit_bytes // PIECES, most_bytes=2 * limit_bytes)
    session.peer.call("programs.forget")
    kept = bool(found["refusal"]) and found["served"] <= limit_bytes + UNNOTICED_BYTES
    trial.report.take("the flavor's limit is kept", kept, found["refusal"] or f"{found['served']} bytes of {limit_bytes} were served")
    trial.report.take("served of the limit before it is kept", found["served"] / limit_bytes)


def lack_workspace(trial: Trial, session: Session, limit_bytes: int) -> None:
    """What an operator needs beside its arguments counts as well; its failure costs nothing that was there."""
    found = session.peer.call("programs.sum_beyond", count_bytes=limit_bytes // 2)
    said = f"{found['kind']}: {found['words']}"
    trial.report.take("an operator without workspace raises torch.OutOfMemoryError", found["kind"] == "OutOfMemoryError", said)
    trial.report.take("the session goes on after it, its tensors whole", found["whole"])
    session.peer.call("programs.forget")


def fragment(trial: Trial, session: Session, limit_bytes: int) -> None:
    """Freed pieces make room as they do natively, under the same limit."""
    piece_bytes = limit_bytes // PIECES
    arguments = {"piece_bytes": piece_bytes, "pieces": 3 * PIECES // 4, "large_bytes": 3 * limit_bytes // 8}
    fits = session.peer.call("programs.fragment", **arguments)
    with trial.native() as native:
        native.call("programs.limit", share=min(1.0, limit_bytes / trial.memory_bytes))
        natively = native.call("programs.fragment", **arguments)
    trial.report.take("a large tensor fits among freed pieces as natively", fits >= natively, f"{fits}, natively {natively}")


def look_for_traces(trial: Trial) -> None:
    """Nearly all of the device's memory is written by somebody who ends, and taken by a new session."""
    whole = trial.sizes.limit_bytes if trial.is_host else trial.memory_bytes
    count_bytes = int(FULL * whole)
    names = "no byte of a session before in fresh memory", "no byte of a native program before in fresh memory"
    for name in names:
        if trial.is_host and name == names[1]:
            trial.report.skip(name, NOT_REHEARSED)
            continue
        with trial.report.figures(name):
            if name == names[0]:
                with trial.session(whole) as before:
                    before.peer.call("programs.pattern", count_bytes=count_bytes)
            else:
                with trial.native() as native:
                    native.call("programs.pattern", count_bytes=count_bytes)
            with trial.session(whole) as session:
                found = session.peer.call("programs.traces", count_bytes=count_bytes)
            trial.report.take(name, found == 0, f"{found} of {count_bytes} bytes were not zero")

"""Part ``kernels``: kernels in Triton that a program brings of its own, compiled and launched by the worker, against native PyTorch."""

from __future__ import annotations

import importlib.util

from gpu.figures import FIGURES, KERNEL_CASES
from gpu.trial import NOT_REHEARSED, Trial

SIZES = {
    "vector add": 1 << 22,
    "softmax": 2048,
    "matmul, autotuned": 2048,
    "attention": 2048,
    "an operator of one's own with its gradient": 1 << 16,
}
LAUNCHES = 200
COMPILE_SECONDS_MAX = 300.0
NO_TRITON = "no Triton in this Python"


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures."""
    if trial.is_host or importlib.util.find_spec("triton") is None:
        for figure in FIGURES.values():
            if figure.part == trial.report.part:
                trial.report.skip(figure.words, NOT_REHEARSED if trial.is_host else NO_TRITON)
        return
    refused(trial)
    with trial.session(trial.memory_bytes, kernels=True) as session, trial.native() as native:
        for case in KERNEL_CASES:
            with trial.report.figures(f"{case}, largest difference", f"{case}, launch ÷ native"):
                arguments = {"name": case, "n": SIZES[case]}
                trial.report.take(f"{case}, largest difference", session.peer.call("kernels.difference", COMPILE_SECONDS_MAX, **arguments))
                native.call("kernels.difference", COMPILE_SECONDS_MAX, **arguments)
                ours, theirs = (peer.call("kernels.launch_us", launches=LAUNCHES, **arguments) for peer in (session.peer, native))
                trial.report.take(f"{case}, launch ÷ native", ours / theirs, f"{ours:.3g} µs, natively {theirs:.3g}")
    with trial.session(trial.memory_bytes, kernels=True) as session, trial.report.figures("a stray address costs the session and says so"):
        said = session.peer.call("kernels.stray", COMPILE_SECONDS_MAX)
        trial.report.take("a stray address costs the session and says so", "the device failed" in said, said[:200])


def refused(trial: Trial) -> None:
    """Where the operator has not allowed it, and where the device is not the session's alone."""
    for name, limit, kernels, words in (
        ("a launch is refused where it is not allowed", trial.memory_bytes, False, "user_kernels"),
        ("a launch is refused on a part of a device", trial.memory_bytes // 4, True, "a flavor of a whole device"),
    ):
        with trial.report.figures(name), trial.session(limit, kernels=kernels) as session:
            said = session.peer.call("kernels.refusal")
            trial.report.take(name, words in said, said)

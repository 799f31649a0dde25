"""Part ``build``: the extensions against this PyTorch, a client process without a GPU, and a worker with it."""

from __future__ import annotations

from gpu.trial import Trial


def run(trial: Trial, compile_seconds: float | None) -> None:
    """Takes the part's figures."""
    report = trial.report
    if compile_seconds is None:
        report.skip("seconds to compile", "built before")
    else:
        report.take("seconds to compile", compile_seconds, "whatever was built before is used again")
    names = [
        "extensions load in this PyTorch",
        "the client sees the virtual device and no GPU",
        "the worker's device computes",
        "the client's result is right",
    ]
    with report.figures(*names), trial.session() as session:
        report.take(names[0], True, session.worker.address.partition(":")[0])
        seen = session.peer.call("programs.seen")
        report.take(names[1], seen["available"] and seen["virtual"] and not seen["gpus"], f"torch {seen['torch']}, CUDA {seen['cuda']}")
        product = session.peer.call("programs.product", rows=64)
        report.take(names[2], product is not None)
        with trial.native() as native:
            expected = native.call("programs.product", rows=64)
        report.take(names[3], abs(product - expected) <= 1e-3 * abs(expected), f"{product:g}, natively {expected:g}")

"""Part ``gang``: a training on one virtual device that is several, against the same on one; each device computes its rows of a batch."""

from __future__ import annotations

from gpu.figures import GANG_MODELS
from gpu.trial import Trial

DEVICES_MAX = 4
MODEL_SECONDS = 15.0
"""About what a model takes, by the time limit's reckoning."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures: on as many devices as there are, or twice on the only one."""
    kind = trial.device.partition(":")[0]
    with trial.native() as native:
        count = min(native.call("programs.count"), DEVICES_MAX)
    others = [f"{kind}:{index}" for index in range(count) if f"{kind}:{index}" != trial.device] or [trial.device]
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

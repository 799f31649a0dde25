"""All figures that the parts give, with their bars: what the JSON may hold, and the rows of the table in docs/reference/gpu-figures.md."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("build", "fidelity", "memory", "park", "share", "speed", "graphs", "kernels", "faults", "gang")
PARK_SIZES_GB = (0.1, 1, 10, 40)
SMALL_MODELS = ("mlp", "transformer", "convnet", "gpt2")
RECURRENT_MODELS = ("lstm", "gru")
"""Whose layers are one call each, natively one of cuDNN's."""
LARGE_MODELS = ("gpt2-medium", "vit-b", "resnet-50")
ATTENTION_CASES = ("causal", "plain", "mask", "dropout", "float32")
KERNEL_CASES = ("vector add", "softmax", "matmul, autotuned", "attention", "an operator of one's own with its gradient")
GANG_MODELS = ("mlp", "transformer")
CARRIERS = ("hosts", "a library of the devices")
SWEEP_DTYPES = ("float32", "bfloat16")
SESSION_COUNTS = (2, 4)
BANDWIDTH_SHARE = 0.7
"""What moving a session's bytes must reach of the bandwidth of its path (DESIGN §10)."""
TIMED_UNITS = {"s", "ms", "µs", "GB/s", "ratio", "of its bandwidth"}
"""Of figures that say nothing in a rehearsal, whose device is the host and whose sizes are tiny."""


@dataclass(frozen=True)
class Figure:
    """One figure. Without a bar it is measured and not judged; a figure without a unit is true or false, and must be true."""

    name: str
    """``part/words``: unique."""
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]

    @property
    def words(self) -> str:
        return self.name.partition("/")[2]

    @property
    def bar(self) -> str:
        if not self.unit:
            return "yes"
        most, least = "" if self.at_most is None else f"≤ {self.at_most:g}", "" if self.at_least is None else f"≥ {self.at_least:g}"
        return " and ".join(bar for bar in (least, most) if bar)

    def met(self, value: float) -> bool | None:
        """Whether the bar is met; None where there is none."""
        if not self.unit:
            return bool(value)
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)


def _build() -> list[Figure]:
    return [
        Figure("build/extensions load in this PyTorch"),
        Figure("build/the client sees the virtual device and no GPU"),
        Figure("build/the worker's device computes"),
        Figure("build/the client's result is right"),
        Figure("build/seconds to compile", "s"),
    ]


def _fidelity() -> list[Figure]:
    return [
        *(Figure(f"fidelity/operators alike, {dtype}", "% of cases", at_least=97) for dtype in SWEEP_DTYPES),
        *(Figure(f"fidelity/operators tried, {dtype}", "cases") for dtype in SWEEP_DTYPES),
        *(
            Figure(f"fidelity/training {model}, largest difference of a loss", "of the first", at_most=1e-3)
            for model in (*SMALL_MODELS, *RECURRENT_MODELS)
        ),
        Figure("fidelity/training gpt2 in bf16 autocast, largest difference of a loss", "of the first", at_most=2e-2),
        Figure("fidelity/dropout of one seed is the same on two workers"),
        *(Figure(f"fidelity/attention {case}: native's kernel, or a fused one for cuDNN's") for case in ATTENTION_CASES),
        *(Figure(f"fidelity/attention {case}, largest difference", "of the largest value", at_most=2e-2) for case in ATTENTION_CASES),
    ]


def _memory() -> list[Figure]:
    return [
        Figure("memory/the flavor's limit is kept"),
        Figure("memory/served of the limit before it is kept", "share", at_least=0.9),
        Figure("memory/an operator without workspace raises torch.OutOfMemoryError"),
        Figure("memory/the session goes on after it, its tensors whole"),
        Figure("memory/a large tensor fits among freed pieces as natively"),
        Figure("memory/no byte of a session before in fresh memory"),
        Figure("memory/no byte of a native program before in fresh memory"),
    ]


def _park() -> list[Figure]:
    sized = [
        figure
        for size in PARK_SIZES_GB
        for figure in (
            Figure(f"park/park {size:g} GB ÷ plain pinned copy", "of its bandwidth", at_least=BANDWIDTH_SHARE),
            Figure(f"park/restore {size:g} GB ÷ plain pinned copy", "of its bandwidth", at_least=BANDWIDTH_SHARE),
            Figure(f"park/park {size:g} GB", "s"),
            Figure(f"park/restore {size:g} GB", "s"),
            Figure(f"park/bytes are the same after {size:g} GB"),
            Figure(f"park/disk: park {size:g} GB", "s"),
            Figure(f"park/disk: restore {size:g} GB", "s"),
            Figure(f"park/move {size:g} GB to another worker", "s"),
        )
    ]
    return [*sized, Figure("park/device memory is free while parked")]


def _share() -> list[Figure]:
    counted = [
        figure
        for count in SESSION_COUNTS
        for figure in (
            Figure(f"share/{count} sessions compute the same losses as one alone"),
            Figure(f"share/{count} sessions, steps a second together ÷ one alone", "ratio", at_least=0.9),
            Figure(f"share/{count} sessions, slowest ÷ fastest", "ratio", at_most=1.5),
        )
    ]
    return [
        *counted,
        Figure("share/the others are whole after a device-side assert"),
        Figure("share/the others are whole after a worker was killed in a kernel"),
        Figure("share/device memory is back after a worker was killed"),
        Figure("share/idle device memory of a worker", "MiB"),
        Figure("share/time slice: short step beside a long kernel, p50 ÷ alone", "ratio"),
        Figure("share/one session on two devices computes the same losses as on one"),
        Figure("share/one session on two devices, step ÷ on one", "ratio"),
        Figure("share/its bytes are the same after it was parked"),
        Figure("share/both devices' memory is back while it is parked"),
    ]


def _speed() -> list[Figure]:
    return [
        *(Figure(f"speed/step ÷ native eager, {model}", "ratio", at_most=1.1) for model in SMALL_MODELS),
        Figure("speed/step ÷ native eager, geometric mean of the four", "ratio", at_most=1.0),
        *(Figure(f"speed/step ÷ native eager, {model}", "ratio", at_most=1.1) for model in RECURRENT_MODELS),
        *(Figure(f"speed/step ÷ native eager, {model} in bf16", "ratio", at_most=1.1) for model in LARGE_MODELS),
        Figure("speed/record one operator, p50", "µs", at_most=2.0),
        Figure("speed/native launch of it, p50", "µs"),
        Figure("speed/read of a ready scalar, p50", "µs", at_most=40.0),
        Figure("speed/native read of it, p50", "µs"),
        Figure("speed/upload 256 MiB ÷ native from pageable memory", "of its bandwidth", at_least=BANDWIDTH_SHARE),
        Figure("speed/download 256 MiB ÷ native to pageable memory", "of its bandwidth", at_least=BANDWIDTH_SHARE),
        Figure("speed/upload 256 MiB", "GB/s"),
        Figure("speed/download 256 MiB", "GB/s"),
        Figure("speed/worker's start to ready, the first one", "s"),
        Figure("speed/worker's start to ready, p50 of later ones", "s"),
        Figure("speed/lease to first kernel, cold worker", "ms"),
        Figure("speed/lease to first kernel, warm worker, p50", "ms"),
        Figure("speed/cell to first kernel, session resident, p50", "ms", at_most=5.0),
    ]


def _graphs() -> list[Figure]:
    return [
        *(Figure(f"graphs/step ÷ native eager, {model}", "ratio") for model in SMALL_MODELS),
        Figure("graphs/step ÷ native eager, geometric mean of the four", "ratio", at_most=0.5),
        *(Figure(f"graphs/step ÷ tier 1, {model}", "ratio", at_most=1.02) for model in SMALL_MODELS),
        *(Figure(f"graphs/step ÷ native eager, {model} in bf16", "ratio", at_most=1.0) for model in LARGE_MODELS),
        *(Figure(f"graphs/step ÷ tier 1, {model} in bf16", "ratio", at_most=1.02) for model in LARGE_MODELS),
    ]


def _kernels() -> list[Figure]:
    return [
        *(Figure(f"kernels/{case}, largest difference", "of the largest value", at_most=1e-2) for case in KERNEL_CASES),
        *(Figure(f"kernels/{case}, launch ÷ native", "ratio") for case in KERNEL_CASES),
        Figure("kernels/a launch is refused where it is not allowed"),
        Figure("kernels/a launch is refused on a part of a device"),
        Figure("kernels/a stray address costs the session and says so"),
    ]


def _faults() -> list[Figure]:
    return [
        Figure("faults/energy by the worker's counter ÷ nvidia-smi's mean power over that time", "ratio", at_most=1.3, at_least=0.7),
        Figure("faults/temperature by the pool's probe less nvidia-smi's", "°C apart", at_most=3),
        Figure("faults/uncorrectable memory errors as nvidia-smi says"),
        Figure("faults/device's unique id as nvidia-smi says"),
        Figure("faults/memory in use by the pool's probe less nvidia-smi's", "MiB apart", at_most=64),
        Figure("faults/the pool would lend the device"),
        Figure("faults/throttling reasons, none that harm"),
        Figure("faults/Xid that the probe hears after a device-side assert", "number"),
        Figure("faults/MIG is on", "0 or 1"),
        Figure("faults/MPS is on", "0 or 1"),
        Figure("faults/compute mode lets several processes in"),
    ]


def _gang() -> list[Figure]:
    return [
        *(Figure(f"gang/{model} on several devices, largest difference of a loss", "of the first", at_most=1e-3) for model in GANG_MODELS),
        *(Figure(f"gang/{model} on several devices, step ÷ on one", "ratio") for model in GANG_MODELS),
        Figure("gang/a library opens for one rank"),
        *(Figure(f"gang/sessions' collectives by {carrier}, {what}") for carrier in CARRIERS for what in ("as defined", "the same bits")),
        *(Figure(f"gang/sessions' collectives by {carrier}, sum of 64 MiB", "ms") for carrier in CARRIERS),
    ]


MAKERS = (_build, _fidelity, _memory, _park, _share, _speed, _graphs, _kernels, _faults, _gang)
FIGURES: dict[str, Figure] = {figure.name: figure for make in MAKERS for figure in make()}

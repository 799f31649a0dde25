"""What nvidia-smi says of a device, and what an operator should know of it before lending it. Reading is apart from understanding."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

SECONDS_MAX = 30
FIELDS = {
    "uuid": ("uuid",),
    "celsius": ("temperature.gpu",),
    "used_mib": ("memory.used",),
    "errors": ("ecc.errors.uncorrected.volatile.total",),
    "mig": ("mig.mode.current",),
    "compute_mode": ("compute_mode",),
    "reasons": ("clocks_event_reasons.active", "clocks_throttle_reasons.active"),
}
"""Our word → nvidia-smi's, the newer name first."""
HARMFUL_REASONS = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown", 0x80: "power brake"}
"""Of NVML's clocksEventReasons; idle clocks, settings and the power cap are as they should be."""


@dataclass(frozen=True)
class Word:
    """A device as nvidia-smi describes it; None where it says nothing of it."""

    uuid: str | None
    celsius: int | None
    used_mib: int | None
    errors: int | None
    mig: bool | None
    compute_mode: str | None
    reasons: int | None

    @property
    def harmful(self) -> list[str]:
        """Why the device computes more slowly than it should."""
        return [words for bit, words in HARMFUL_REASONS.items() if (self.reasons or 0) & bit]


def understood(said: dict[str, str]) -> Word:
    """Of nvidia-smi's words, one for each of FIELDS that it knows."""
    known = {name: text for name, text in said.items() if text and not text.startswith("[") and text != "N/A"}

    def number(name: str) -> int | None:
        return int(known[name], 0) if name in known else None

    mig = known.get("mig")
    return Word(
        known.get("uuid"),
        number("celsius"),
        number("used_mib"),
        number("errors"),
        None if mig is None else mig == "Enabled",
        known.get("compute_mode"),
        number("reasons"),
    )


def asked(index: int) -> dict[str, str]:
    """What nvidia-smi answers, field by field, since one that a driver does not know spoils the others. Raises FileNotFoundError."""
    said = {}
    for name, words in FIELDS.items():
        for word in words:
            command = ["nvidia-smi", f"--id={index}", f"--query-gpu={word}", "--format=csv,noheader,nounits"]
            found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
            if not found.returncode:
                said[name] = found.stdout.strip()
                break
    return said


def watts(index: int) -> float:
    """What the device draws now. Raises ValueError where it is not told."""
    command = ["nvidia-smi", f"--id={index}", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    return float(subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=True).stdout)


def mps_runs(processes: Path = Path("/proc")) -> bool:
    """Whether NVIDIA's multi-process service is up: its control daemon, or its server."""
    for path in processes.glob("[0-9]*/comm"):
        try:
            if path.read_text().startswith("nvidia-cuda-mps"):
                return True
        except OSError:
            continue  # it ended meanwhile
    return False

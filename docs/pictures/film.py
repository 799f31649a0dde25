"""An animated picture of what a page shows while somebody uses it: waits are shortened, and what is to be read stays."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from PIL import Image

FRAME_SECONDS = 0.25
"""How long a frame of a wait is shown."""
WAIT_SECONDS_MAX = 4.0
"""What is left of a wait: so many seconds of frames, evenly chosen of those that differ."""
POLL_SECONDS = 0.2


def thinned(frames: list[bytes]) -> list[bytes]:
    """Those of a wait that differ from the one before, or so many of them as are shown, the last one among them."""
    different = [frame for frame, _ in groupby(frames)]
    shown = min(len(different), round(WAIT_SECONDS_MAX / FRAME_SECONDS))
    return [different[(number + 1) * len(different) // shown - 1] for number in range(shown)]


class Film:
    """Frames, each with how long it is shown. A ``shot`` returns what a page shows now, as PNG."""

    def __init__(self) -> None:
        self._frames: list[tuple[bytes, float]] = []

    def hold(self, shot: Callable[[], bytes], seconds: float) -> None:
        """Shows what is there for so long."""
        self._frames.append((shot(), seconds))

    def until(self, shot: Callable[[], bytes], holds: Callable[[], bool], timeout_seconds: float) -> None:
        """Goes on until that holds. Raises TimeoutError."""
        taken: list[bytes] = []
        deadline = time.monotonic() + timeout_seconds
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError("the film does not go on")
            taken.append(shot())
            time.sleep(POLL_SECONDS)
        self._frames += [(frame, FRAME_SECONDS) for frame in thinned(taken)]

    def write(self, path: Path) -> None:
        """Writes it as WebP, without loss, which begins anew when it is over."""
        first, *others = (Image.open(io.BytesIO(frame)).convert("RGB") for frame, _ in self._frames)
        milliseconds = [round(seconds * 1000) for _, seconds in self._frames]
        options = {"lossless": True, "quality": 100, "method": 6, "minimize_size": True, "loop": 0}
        first.save(path, "WEBP", save_all=True, append_images=others, duration=milliseconds, **options)

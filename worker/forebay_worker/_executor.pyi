from collections.abc import Callable
from typing import Any

from forebay_worker.device_graphs import DeviceGraph
from forebay_worker.groups.device_library import DeviceLibrary
from forebay_worker.user_code.program_callbacks import CallBack
from forebay_worker.user_code.programs import Executable

TORCH_VERSION: str

Event = tuple[str, int, int, int, str]
"""Kind, epoch, number (idle, waiting, closed: nanoseconds; parked, left, kept, copied: bytes), bytes spilled (parked, left), text.

The text is of ``left`` (address, ticket, and the hash of the certificate or nothing), ``refused`` and ``failed``."""

Offer = tuple[str, int, bytes]
"""Kind, the number of a segment or kernel, text. The kinds are those of ``forebay_worker.offers.OfferKind``."""

class Server:
    event_descriptor: int
    address: str
    certificate: str
    """The SHA-256 of its certificate, in hex; empty where it speaks no TLS."""
    def __init__(
        self,
        kind: str,
        index: int,
        model: str,
        address: str,
        threads: int | None,
        spill_directory: str,
        others: list[tuple[str, bytes]],
        homes: str,
        limit_memory: Callable[[int], None],
        make_graph: Callable[[], DeviceGraph] | None,
        reconnect_seconds: float = 0.0,
        tls: bool = False,
        plaintext: bool = False,
    ) -> None:
        """``tls``: it makes a certificate, and is reached by TLS; with ``plaintext`` in clear, too. Raises RuntimeError without OpenSSL."""

    def assign(
        self,
        ticket: bytes,
        limit_bytes: int,
        idle_release_seconds: float,
        source: tuple[str, bytes, str] | None = None,
        images: str = "",
        images_fill_max: float = 1.0,
        image: int = 0,
        word_seconds: float = 0.0,
        is_outside: bool = False,
    ) -> None:
        """``images``: the folder in which images of the session outlive this process; empty: nowhere. ``images_fill_max``: the part of its
        file system that may be in use once one is there. ``image``: the number of the one that the session goes on from; 0: none.
        ``word_seconds``: how long a pool is given to end this worker once that of another member of a process group is gone.
        ``is_outside``: the client comes by an edge, and is waited for where its connection breaks."""

    def carry(
        self,
        source: tuple[str, bytes, str],
        limit_bytes: int,
        bytes_per_second: int,
        images: str = "",
        images_fill_max: float = 1.0,
        image: int = 0,
    ) -> None:
        """``images`` and ``images_fill_max``: as for ``assign``. ``image``: the number of the image to be kept there; 0: none."""

    def open(self, epoch: int, limit_bytes: int) -> None: ...
    def close(self, epoch: int) -> None: ...
    def park(self, host_bytes: int, spill_bytes: int) -> None: ...
    def restore(self) -> None: ...
    def end(self) -> None: ...
    def take_rates(self, packed: bytes) -> None:
        """Before ``assign``: several devices divide their work by these ``rates`` of another session's worker. Raises RuntimeError, or a
        WireError where that was imported."""

    @property
    def rates(self) -> bytes:
        """Once assigned: what was measured of several devices, or taken; empty where there is one."""

    def compile(self, due_seconds: float) -> None: ...
    def take_offers(self) -> list[Offer]: ...
    def give_library(self, number: int, path: str, note: str, is_shared: bool, took: float | None) -> None:
        """``note``: what is said of it; ``is_shared``: it is for several sizes; ``took``: of tier 1's time, where it was quicker in a
        session before."""
    def refuse_library(self, number: int, why: str) -> None: ...
    def lack_library(self, number: int) -> None:
        """None is known of it, for now."""
    def widen_segment(self, number: int, changing: set[tuple[int, int]]) -> None:
        """Has it described anew as one in which these numbers change: of which call, and which of its words."""
    def copy(self, session: str, checkpoint: int, images: str, images_fill_max: float) -> None:
        """What the session held at the checkpoint becomes the first image of another one, in this folder; empty: there is none."""
    def take_along(self, libraries: bytes) -> None:
        """They go along with a session that leaves."""
    def take_kernels(
        self, refused: str, bytes_min: int, too_little: str, launch: Callable[[int, tuple[int, int, int], bytes], None] | None
    ) -> None:
        """``refused``: why no kernels of programs are taken; empty: they are, of sessions that have so many bytes of the device."""
    def take_programs(self, refused: str, compile: Callable[[bytes, tuple[Any, ...], CallBack], Executable] | None) -> None:
        """``refused``: why no whole programs are taken; empty: they are. ``compile`` is called on the serving thread, with the fields of
        the program's Placement, and what the program calls functions of its client by."""
    def collect_by(self, library: DeviceLibrary) -> None:
        """Before ``assign``."""

    def give_kernel(self, number: int, name: str, parameters: str) -> None:
        """Raises ValueError for parameters that are none."""
    def refuse_kernel(self, number: int, code: int, why: str) -> None: ...
    def take_events(self) -> list[Event]: ...
    def statistics(self) -> tuple[int | None, int, int, int]: ...
    def running(self) -> tuple[int, str] | None: ...
    def join(self, seconds: float) -> bool: ...

def apply_settings(bits: int) -> None: ...
def schema_hash(text: str) -> int: ...
def allowed_operators() -> list[tuple[str, int]]: ...
def denied_operators() -> list[tuple[str, str]]: ...

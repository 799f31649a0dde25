"""``python -m forebay_worker.user_code.kernel_compiler KIND:ARCHITECTURE:WARP FORM``: compiles kernels as described on standard input.

Each comes behind its length, four bytes, little-endian. Says on standard output, in a line of JSON, what came of it. What is described
is a tenant's, in Triton's intermediate representation: none of it is Python. This process has neither a token nor a network.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_worker.confinement import confine

if TYPE_CHECKING:
    from forebay_wire.vocabulary import KernelSource

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""Files are called by it."""
NAME_CHARS_MAX = 200
HIDDEN_MAX = 4
READS_FILE = re.compile(r'libpath\s*=\s*"[^"]')
PARAMETER = re.compile(r"%\w+:\s*(!tt\.ptr<|[a-z]\w*)")
BITS = {"i1": "1", "i8": "1", "i16": "2", "i32": "4", "i64": "8", "f16": "2", "bf16": "2", "f32": "4", "f64": "8"}
"""How many bytes a kernel reads of a number of that type."""
PTX_ENTRY = re.compile(r"\.entry\s+\w+\s*\(([^)]*)\)")
RELEASE = re.compile(r"\d+\.\d+")


class Unsupported(Exception):
    """Why a kernel is not compiled."""


@dataclass(frozen=True)
class Compiled:
    """A kernel for one make of device."""

    name: str
    parameters: str
    """Of each, its bytes, or p for a pointer: those that a launch gives."""
    hidden: int
    """Pointers that the compiler adds behind them; nothing is used of what they would point to."""
    shared_bytes: int
    """Of a block."""
    threads: int
    binary: bytes

    def encoded(self) -> str:
        return json.dumps(dataclasses.asdict(self) | {"binary": base64.b64encode(self.binary).decode()})

    @classmethod
    def decoded(cls, said: dict[str, Any]) -> Compiled:
        """Raises ValueError, KeyError, TypeError for what is none."""
        hidden, shared_bytes, threads = (int(said[name]) for name in ("hidden", "shared_bytes", "threads"))
        name = str(said["name"])
        if not (NAME.fullmatch(name) and len(name) <= NAME_CHARS_MAX and 0 <= hidden <= HIDDEN_MAX and shared_bytes >= 0 and threads > 0):
            raise ValueError("what its compiler said is no kernel")
        return cls(name, str(said["parameters"]), hidden, shared_bytes, threads, base64.b64decode(said["binary"], validate=True))


def parameters_of(representation: str, name: str) -> str:
    """As :class:`Compiled` has them, of a kernel by its name. Raises Unsupported for a type that a launch cannot give."""
    found = re.search(rf"tt\.func\s+(?:public\s+)?@{name}\(", representation)
    if found is None:
        raise Unsupported(f"there is no kernel {name} in it")
    end = representation.index("\n", found.end())
    letters = []
    for kind in PARAMETER.findall(representation[found.end() : end]):
        letters.append("p" if kind.startswith("!tt.ptr") else BITS.get(kind, ""))
        if not letters[-1]:
            raise Unsupported(f"a parameter of type {kind}")
    return "".join(letters)


def check_release(wanted: str) -> None:
    """Raises Unsupported where this host's Triton reads another representation, and ImportError where it has none."""
    import triton

    ours, theirs = (RELEASE.match(version) for version in (triton.__version__, wanted))
    if ours is None or theirs is None or ours[0] != theirs[0]:
        raise Unsupported(
            f"it is of Triton {wanted}, and this worker has {triton.__version__}; install triton=={triton.__version__} where it is launched"
        )


def compile_kernel(source: KernelSource, target: tuple[str, int, int], form: str) -> Compiled:
    """For a kind of device, its architecture and the threads of a warp, in the form that its driver loads. Raises Unsupported, or what the
    compiler raises."""
    check_release(source.compiler)
    import triton
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    representation = source.representation.decode("utf-8", "replace")
    if READS_FILE.search(representation):
        raise Unsupported("it names a file of its host")
    if source.blocks != 1:
        raise Unsupported(f"it wants clusters of {source.blocks} blocks (num_ctas); launches have single blocks here")
    path = Path("kernel.ttir")
    path.write_text(representation)
    context = ir.context()
    ir.load_dialects(context)
    make_backend(GPUTarget(*target)).load_dialects(context)
    name = ir.parse_mlir_module(str(path), context).get_entry_func_name()
    if not name:
        raise Unsupported("there is no kernel in it")
    if not NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise Unsupported("its name is none of Python's")
    parameters = parameters_of(representation, name)
    options = {"num_warps": source.warps, "num_stages": source.stages, "enable_fp_fusion": source.fuses}
    if source.registers_max:
        options["maxnreg"] = source.registers_max
    made = triton.compile(str(path), target=GPUTarget(*target), options=options)
    entry = PTX_ENTRY.search(made.asm.get("ptx", ""))
    hidden = 0 if entry is None else entry[1].count(".param") - len(parameters)
    scratch = [getattr(made.metadata, kind, None) for kind in ("global_scratch_size", "profile_scratch_size")]
    if any(scratch):
        raise Unsupported("it needs memory beside its arguments, as descriptors made on the device do")
    binary = made.asm[form]
    encoded = binary if isinstance(binary, bytes) else binary.encode()
    return Compiled(made.metadata.name, parameters, hidden, made.metadata.shared, made.metadata.num_warps * target[2], encoded)


def answer_to(body: bytes, target: tuple[str, int, int], form: str) -> str:
    """A line of JSON: the kernel, or ``refused`` with the reason."""
    from forebay_wire._stream import Reader, WireError
    from forebay_wire.kernels import get_source

    try:
        return compile_kernel(get_source(Reader(body)), target, form).encoded()
    except (Unsupported, WireError) as error:
        return json.dumps({"refused": str(error)})
    except ImportError:
        return json.dumps({"refused": "its worker has no Triton; install there the release that its PyTorch asks for"})
    except Exception as error:  # whatever the compiler trips over, the session goes on
        words = [*str(error).strip().splitlines(), ""][0]
        return json.dumps({"refused": f"it cannot be compiled: {type(error).__name__}: {words}", "failed": True})


def main() -> int:
    """The exit status: 0 where it said what came of it."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the compiler's own programs say
    kind, architecture, warp = sys.argv[1].split(":")
    try:
        confine(behind_others=False)
    except OSError as error:
        print(json.dumps({"refused": f"its worker's host cannot confine a compiler: {error}"}), file=answer)
        return 0
    with contextlib.suppress(BrokenPipeError):
        while header := sys.stdin.buffer.read(4):
            body = sys.stdin.buffer.read(int.from_bytes(header, "little"))
            print(answer_to(body, (kind, int(architecture), int(warp)), sys.argv[2]), file=answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

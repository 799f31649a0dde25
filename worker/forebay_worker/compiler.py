"""``python -m forebay_worker.compiler LIBRARY [ALIKE …]``: makes a library of the segment that is described on standard input.

Where a description in one of the files ALIKE differs from it in a size, and in what follows from that, the library is for other sizes, too.
``--size ONE OTHER`` makes none, and tells the size of the segment, which differs in it from these two.
``--time`` makes none, and tells how many seconds the segment's library takes, which ``TIMED_LIBRARY`` names.
Says on standard output, in a line of JSON, what came of it. The description is a tenant's: this process has neither a token nor a
network, and takes operators of a list alone (``pure_operators.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay_worker.confinement import confine

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule

    from forebay_worker.descriptions import Description
    from forebay_worker.symbolic_graphs import Alike

DESCRIPTION_BYTES_MAX = 64 << 20
SIZE = "--size"
TIME = "--time"
LIBRARY = "TIMED_LIBRARY"
"""Environment variable: the library to be timed."""
TIMED_RUNS = 9
VERSION = 10
"""Of what this makes of a description; libraries of another one are not found."""


INCLUDED = """\
#if defined(__cplusplus) && !defined(INCLUDED_BY_FOREBAY)
#define INCLUDED_BY_FOREBAY
#define OF_THE_LIBRARY extern "C" __attribute__((weak, visibility("hidden")))
OF_THE_LIBRARY int __cxa_thread_atexit(void (*)(void*), void*, void*) noexcept { return 0; }
extern "C" int omp_get_max_threads(void) noexcept;
extern "C" void __real_GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
OF_THE_LIBRARY void __wrap_GOMP_parallel(void (*part)(void*), void* data, unsigned threads, unsigned flags) {
  const unsigned most = static_cast<unsigned>(omp_get_max_threads());
  __real_GOMP_parallel(part, data, threads < most ? threads : most, flags);
}
#endif
"""
"""At the end of a library's source. It does not ask to be told of the ends of threads that called it, for which the system would keep it,
though it is closed; what it has of a thread is the text of its last error, which is empty. And its loops take as many threads as the worker
gives them when it is called, if that is fewer than it was compiled for."""
CPP_COMPILER = """\
#!/bin/sh
case " $* " in
  *' -shared '*) wrapped=-Wl,--wrap=GOMP_parallel ;;
  *) wrapped= ;;
esac
exec g++ -fno-gnu-unique $wrapped "$@" -include {included}
"""
PARALLEL_ELEMENTS_MIN = 16_384
"""For each thread, of a loop that threads share: Inductor's own 512 take them less time than to meet."""


@contextlib.contextmanager
def default_dtype_of(description: Description) -> Iterator[None]:
    """PyTorch's default dtype as its calls have it, under which its graph is built and compiled. Raises Unsupported."""
    import torch

    from forebay_worker import graphs

    before = torch.get_default_dtype()
    torch.set_default_dtype(graphs.dtype_of(description.default_dtype))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def compile_to(library: Path, body: bytes) -> str | None:
    """Why there is no library; None where it was made."""
    import torch
    from forebay_wire._stream import WireError

    from forebay_worker import descriptions, graphs

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        description = descriptions.read(body)
        with default_dtype_of(description):
            graph = graphs.build(description)
    except (graphs.Unsupported, WireError) as error:
        return str(error)
    try:
        with default_dtype_of(description):
            make(library, graph.module, graph.inputs)
    except Exception as error:  # whatever the compiler trips over, the segment stays as it is
        return f"it cannot be compiled: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if not library.exists():
        return "the compiler made no library"
    return None


def compile_sized(library: Path, body: bytes, alike: Sequence[bytes]) -> dict[str, Any]:
    """Of segments that differ in a size: which one of those alike it is that the library is made of beside this one (``alike``), both sizes
    (``made_of``), and for which it is (``sizes``, ranges with their ends). Where there is no such library nothing, or that others differ in
    several sizes (``alone``)."""
    import torch
    from forebay_wire._stream import WireError

    from forebay_worker import descriptions, graphs
    from forebay_worker.symbolic_graphs import SeveralSizes

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    why = {}
    for number, other in enumerate(alike):
        try:
            description = descriptions.read(body)
            with default_dtype_of(description):
                pair = _pair(descriptions.read(other), description)
                sized = pair.graph()
        except SeveralSizes as error:
            why = {"alone": str(error)}
            continue
        except (graphs.Unsupported, WireError):
            continue
        try:
            with default_dtype_of(description):
                make(library, sized.module, sized.inputs)
        except Exception:  # whatever the compiler trips over, the segment may get a library of its own
            return {}
        sizes = sized.sizes()
        if library.exists() and all(any(first <= size <= last for first, last in sizes) for size in pair.sizes):
            return {"alike": number, "made_of": pair.sizes, "sizes": sizes}
        library.unlink(missing_ok=True)
        return {}
    return why


def size_of(body: bytes, alike: Sequence[bytes]) -> dict[str, Any]:
    """``size`` of a segment that differs in it from the two; where it does so in several ``alone``, else ``refused``, with the reason."""
    from forebay_wire._stream import WireError

    from forebay_worker import descriptions, graphs
    from forebay_worker.symbolic_graphs import SeveralSizes

    try:
        one, other, description = (descriptions.read(each) for each in (*alike, body))
        with default_dtype_of(description):
            return {"size": _pair(one, other).size_of(graphs.build(description))}
    except SeveralSizes as error:
        return {"alone": str(error)}
    except (graphs.Unsupported, WireError) as error:
        return {"refused": str(error)}


def seconds_of(library: Path, body: bytes) -> dict[str, Any]:
    """``seconds``: the least of some runs of the segment's library, of contents that are made up. Where it fails ``refused``, with the
    reason."""
    import torch
    from forebay_wire._stream import WireError

    from forebay_worker import descriptions, graphs

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    try:
        description = descriptions.read(body)
        with default_dtype_of(description):
            inputs = graphs.build(description).inputs
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
        for given in inputs:
            given.uniform_(0, 1) if given.is_floating_point() else given.zero_()
        runs = []
        for _ in range(TIMED_RUNS):
            begin = time.perf_counter()
            runner.run(inputs)
            runs.append(time.perf_counter() - begin)
    except (graphs.Unsupported, WireError, RuntimeError) as error:
        return {"refused": str(error)}
    return {"seconds": min(runs)}


def _pair(one: Description, other: Description) -> Alike:
    """Raises Unsupported."""
    from forebay_worker import graphs
    from forebay_worker.symbolic_graphs import Alike

    return Alike(graphs.build(one), graphs.build(other))


def make(library: Path, module: GraphModule, inputs: Sequence[Tensor]) -> None:
    """Compiles the graph, for inputs such as these, and says beside it which operators of our own it calls. Raises what compilers raise."""
    import torch
    from torch._inductor import aot_compile

    from forebay_worker import matmul_backend

    matmul_backend.take_quicker(module)
    options: dict[str, Any] = {"aot_inductor.output_path": str(library), "fallback_random": True}
    options |= {"cpp.cxx": (None, str(_cpp_compiler(library.parent))), "cpp.min_chunk_size": PARALLEL_ELEMENTS_MIN}
    with torch.no_grad():
        aot_compile(module, tuple(inputs), options=options)
    for calls in library.parent.glob("*.wrapper.json"):
        calls.replace(library.with_suffix(".json"))


def _cpp_compiler(folder: Path) -> Path:
    """One whose libraries are gone when they are closed: symbols that are unique in a process keep theirs for ever, and threads as long as
    they live. Where what is compiled once is kept, as its name is a part of what that is known by. What it includes comes last: a header
    that is compiled before must come first."""
    script = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", folder), f"version-{VERSION}", "g++")
    script.parent.mkdir(parents=True, exist_ok=True)
    included = script.with_name("included.h")
    included.write_text(INCLUDED)
    script.write_text(CPP_COMPILER.format(included=shlex.quote(str(included))))
    script.chmod(0o700)
    return script


def _answer(what: str, body: bytes, alike: Sequence[bytes]) -> dict[str, Any]:
    if what == SIZE:
        return size_of(body, alike)
    if what == TIME:
        return seconds_of(Path(os.environ[LIBRARY]), body)
    made = compile_sized(Path(what), body, alike) if alike else {}
    if "sizes" in made:
        return made
    refused = compile_to(Path(what), body)
    return made if refused is None else {"refused": refused}


def main() -> int:
    """The exit status: 0 where it said what came of it."""
    answer, sys.stdout = sys.stdout, sys.stderr
    try:
        confine()
    except OSError as error:
        print(json.dumps({"refused": f"this host cannot confine a compiler: {error}"}), file=answer)
        return 0
    body = sys.stdin.buffer.read(DESCRIPTION_BYTES_MAX + 1)
    if len(body) > DESCRIPTION_BYTES_MAX:
        print(json.dumps({"refused": "its description is too long"}), file=answer)
        return 0
    try:
        found = _answer(sys.argv[1], body, [Path(path).read_bytes() for path in sys.argv[2:]])
    except Exception as error:  # a fault of ours: the segment stays as it is, and the reason says so
        found = {"refused": f"its compiler failed: {type(error).__name__}: {error}"}
    print(json.dumps(found), file=answer)
    with contextlib.suppress(BrokenPipeError):
        answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

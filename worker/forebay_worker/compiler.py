"""``python -m forebay_worker.compiler LIBRARY``: makes a library of the segment that is described on standard input.

Says on standard output, in a line of JSON, why not where it does not. The description is a tenant's: this process has neither a
token nor a network, and takes operators of a list alone (``pure_operators.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from forebay_worker.confinement import confine

DESCRIPTION_BYTES_MAX = 64 << 20
VERSION = 3
"""Of what this makes of a description; libraries of another one are not found."""


def compile_to(library: Path, body: bytes) -> str | None:
    """Why there is no library; None where it was made."""
    import torch
    from forebay_wire._stream import WireError

    from forebay_worker import descriptions, graphs

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        graph = graphs.build(descriptions.read(body))
    except (graphs.Unsupported, WireError) as error:
        return str(error)
    from torch._inductor import aot_compile

    with torch.no_grad():
        try:
            aot_compile(graph.module, tuple(graph.inputs), options={"aot_inductor.output_path": str(library), "fallback_random": True})
        except Exception as error:  # whatever the compiler trips over, the segment stays as it is
            return f"it cannot be compiled: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
    if not library.exists():
        return "the compiler made no library"
    return None


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
    refused = compile_to(Path(sys.argv[1]), body)
    print(json.dumps({} if refused is None else {"refused": refused}), file=answer)
    with contextlib.suppress(BrokenPipeError):
        answer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())

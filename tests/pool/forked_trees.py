"""A tree of processes that fork: each goes on by chance, and is held against the same on the CPU, which was forked with it.

Run as ``forked_trees.py SEED STEPS``. Prints for each process what it did, as JSON. Ends with 1 where a bit differs.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import traceback
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "device"))
from checkpointed_programs import Program

DEPTH_MAX, CHILDREN_MAX = 3, 3
LOSSES = {
    "origin": re.compile("The session of the process that this one was forked from is over"),
    "copy": re.compile("cannot be had here"),
    "unkept": re.compile("worker that held this session's tensors is gone|connection to the worker broke .* are lost|cannot be done again"),
}
"""How a process may lose tensors, by what it is told: its parent's session, or the copy, is not to be had; its worker died, and no image
is kept."""


def grow(program: Program, chance: random.Random, steps: int, depth: int) -> bool:
    """Goes on for so many steps, with children on the way. Whether all of them are well."""
    program.run(steps)
    children = []
    for _ in range(chance.randint(0 if depth < DEPTH_MAX else 1, CHILDREN_MAX) if depth else 0):
        seed = chance.randrange(1 << 30)
        pid = os.fork()
        if pid == 0:
            os._exit(ended(program, seed, steps, depth - 1))
        children.append(pid)
        if chance.random() < 0.7:
            program.run(chance.randrange(steps))  # while the child begins, or before
    return all([os.waitpid(pid, 0)[1] == 0 for pid in children])


def ended(program: Program, seed: int, steps: int, depth: int) -> int:
    """The exit status of a process of the tree."""
    well = False
    try:
        program.branch(seed)
        well = grow(program, random.Random(seed), steps, depth)
    except RuntimeError as error:
        losses = [loss for loss, told in LOSSES.items() if told.search(str(error))]
        program.done.update(["lost", *losses])
        well = bool(losses)
        if not well:
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    os.write(1, (json.dumps(dict(program.done)) + "\n").encode())
    return 0 if well else 1


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(ended(Program(int(sys.argv[1]), ""), int(sys.argv[1]), int(sys.argv[2]), DEPTH_MAX))

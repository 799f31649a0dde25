"""``ADDRESS TICKET NAME STEPS``: trains as ``recomputed_gang_programs.py`` does, and takes each step again for which there was no memory.

Prints as JSON the losses and what the weights are, and how often a step was taken again.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[1], sys.argv[2])

import torch
from recomputed_gang_programs import PROGRAMS, Program, numbers_of

TRIES_MAX = 200


class Saved:
    """All that a step changes, on the host."""

    def __init__(self, program: Program) -> None:
        self.model = {name: value.cpu() for name, value in program.model.state_dict().items()}
        self.optimizer = copy.deepcopy(program.optimizer.state_dict())
        for state in self.optimizer["state"].values():
            state |= {name: value.cpu() for name, value in state.items() if isinstance(value, torch.Tensor)}
        self.chance = torch.get_rng_state(), torch.cuda.get_rng_state()

    def restore(self, program: Program) -> None:
        program.optimizer.zero_grad()
        program.model.load_state_dict(self.model)
        program.optimizer.load_state_dict(copy.deepcopy(self.optimizer))  # it keeps what it is given
        torch.set_rng_state(self.chance[0])
        torch.cuda.set_rng_state(self.chance[1])


def main(name: str, steps: int) -> None:
    torch.set_num_threads(1)
    program = PROGRAMS[name]()
    losses, again = [], 0
    for number in range(steps):
        saved = None
        for attempt in range(TRIES_MAX):
            try:
                saved = saved or Saved(program)
                if attempt:
                    saved.restore(program)
                loss = program.step(number).item()
                torch.cuda.synchronize()
                losses.append(loss)
                break
            except torch.OutOfMemoryError:
                again += 1
    assert len(losses) >= steps, "there was never memory"
    weights = numbers_of([*program.model.parameters(), *program.model.buffers()])
    print(json.dumps({"losses": [loss.hex() for loss in losses], "weights": weights, "again": again}))


if __name__ == "__main__":
    main(sys.argv[3], int(sys.argv[4]))

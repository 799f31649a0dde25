"""``ADDRESS TICKET``: adds up the same rows of numbers again and again, each row by itself, in the same segment.

Prints as JSON which different results there were, and how far one is from the sums in double precision at most, of these.
"""

from __future__ import annotations

import json
import sys

import torch
from operator_sweep import attach

ROWS, NUMBERS, COMINGS = 8, 200_003, 120


def main() -> None:
    address, ticket = sys.argv[1:]
    attach(address, ticket)
    torch.manual_seed(20)
    rows = torch.rand(ROWS, NUMBERS).unbind()
    there, sums = [row.cuda() for row in rows], []
    for _ in range(COMINGS):
        sums.append(torch.stack([row.sum() for row in there]))
        torch.cuda.synchronize()
    found, exact = torch.stack(sums).cpu().unique(dim=0), torch.stack([row.double().sum() for row in rows])
    print(json.dumps({"different": len(found), "farthest": (found / exact - 1).abs().max().item()}), flush=True)



if __name__ == "__main__":
    main()

"""``ADDRESS TICKET ADDRESS TICKET``: launches a kernel on the first worker, breaks off, and goes on at the second. Prints JSON."""

from __future__ import annotations

import json
import sys

import torch
from forebay import _C
from operator_sweep import attach
from triton_programs import add

if __name__ == "__main__":
    address, ticket, next_address, next_ticket = sys.argv[1:]
    _C.set_journal(1 << 24, 0.0)
    attach(address, ticket)
    x = torch.arange(4.0, device="cuda")
    out = add(x, x * 2, torch.zeros(4, device="cuda"))
    before = out.tolist()
    went_on = _C.break_off()
    _C.connect(next_address, bytes.fromhex(next_ticket))
    _C.lease_opened(2, 1 << 40)
    after = add(out, out, torch.zeros(4, device="cuda")).tolist()
    print(json.dumps({"before": before, "after": after, "went_on": went_on}), flush=True)

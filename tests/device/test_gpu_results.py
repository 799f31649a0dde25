"""What is told of results that GPUs make otherwise than a CPU. A null device stands for a GPU: it says nothing of values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import fork_server
import pytest
from standalone import standalone_worker

PROGRAM = """
import json, sys
from operator_sweep import attach
attach(sys.argv[1], sys.argv[2])
import torch
x = torch.ones(6, 4, device="cuda", requires_grad=True)
kept = torch.ops.aten.log_sigmoid_forward(x.detach())[1]
torch.nn.functional.logsigmoid(x).sum().backward()
none = torch.ones(0, 3, device="cuda", requires_grad=True)
torch.pdist(none).sum().backward()
torch.cuda.synchronize()
print(json.dumps({"kept by log_sigmoid": list(kept.shape), "gradient": list(x.grad.shape), "gradient of no rows": list(none.grad.shape)}))
"""


@pytest.mark.parametrize(("device", "kept"), [("cpu:0", [6, 4]), ("null:0", [0])])
def test_a_result_has_the_sizes_that_the_worker_s_device_gives_it(device: str, kept: list[int], tmp_path: Path) -> None:
    with standalone_worker(tmp_path, "--device", device) as (address, ticket):
        command = [fork_server.programs(), "-c", PROGRAM, address, ticket]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"kept by log_sigmoid": kept, "gradient": [6, 4], "gradient of no rows": [0, 3]}

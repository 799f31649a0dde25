"""A process with two virtual devices, each a session of its own, on a pool with one physical device."""

from __future__ import annotations

import os
import subprocess

import fork_server

PREAMBLE = """
import copy, json, os, urllib.request
import torch

def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"nothing raised: {words}")

def sessions():
    token = {"Authorization": "token " + os.environ["FOREBAY_TOKEN"]}
    request = urllib.request.Request(os.environ["FOREBAY_URL"] + "api/sessions", headers=token)
    return [row for row in json.load(urllib.request.urlopen(request)) if "python -c" in row["process"]]
"""


def run(code: str, devices: str = "2") -> None:
    """Runs code in a process with these devices, on the pool of this process."""
    environment = os.environ | {"FOREBAY_DEVICES": devices}
    done = subprocess.run([fork_server.programs(), "-c", PREAMBLE + code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_tensors_live_on_their_device_and_copies_go_between() -> None:
    run("""
x, y = torch.arange(6., device="cuda:1").view(2, 3), torch.ones(2, 3, device="cuda")
assert (x.device, y.device, (x + 1).device) == (torch.device("cuda:1"), torch.device("cuda:0"), torch.device("cuda:1"))
raises(RuntimeError, "found at least two devices, cuda:0 and cuda:1!", lambda: y + x)
raises(RuntimeError, "found at least two devices, cuda:1 and cuda:0!", lambda: torch.cat([x, y]))
raises(RuntimeError, "cuda:2 does not exist", lambda: torch.ones(1, device="cuda:2"))
assert (x.to("cuda:0") + y).tolist() == [[1, 2, 3], [4, 5, 6]]
y.copy_(x.t()[:1, :1]); y[0].copy_(x[1].double())
assert y.tolist() == [[3, 4, 5], [0, 0, 0]]
assert x.mul(torch.tensor(2.)).sum().item() == 30
for _ in range(20):
    x = (x + 1).to("cuda:0").mul(2).to("cuda:1")
assert torch.equal(x.cpu().remainder(2), torch.zeros(2, 3))
w, v = torch.nn.Linear(3, 3, device="cuda:0"), torch.nn.Linear(3, 1, device="cuda:1")
v(w(torch.ones(2, 3, device="cuda:0")).to("cuda:1")).sum().backward()
assert (w.weight.grad.device.index, v.weight.grad.device.index) == (0, 1)
assert torch.equal(w.bias.grad.cpu(), v.weight.detach().cpu()[0] * 2)
torch.save({"a": x, "b": y}, "/dev/null")
""")


def test_the_current_device_streams_memory_and_generators_are_each_devices_own() -> None:
    run("""
assert torch.cuda.device_count() == torch.accelerator.device_count() == 2
with torch.cuda.device(1):
    assert torch.cuda.current_device() == 1 and torch.zeros(2, device="cuda").device.index == torch.ones(1).cuda().device.index == 1
    assert torch.cuda.current_stream().device_index == torch.cuda.Stream().device_index == 1
assert torch.cuda.current_device() == 0
torch.cuda.set_device(1); assert torch.randn(2, device="cuda").get_device() == 1; torch.cuda.set_device("cuda:0")
raises(RuntimeError, "cuda:5 does not exist", lambda: torch.cuda.set_device(5))
kept = torch.empty(1000, device="cuda:1")
assert torch.cuda.memory_allocated(1) == 4000 and torch.cuda.memory_allocated() == 0
assert torch.cuda.max_memory_allocated("cuda:1") >= 4000 and torch.cuda.mem_get_info(1)[1] - torch.cuda.mem_get_info(1)[0] == 4000
side = torch.cuda.Stream(device=1)
with torch.cuda.stream(side):
    assert torch.cuda.current_device() == 1 and torch.cuda.current_stream() == side
assert torch.cuda.current_device() == 0 and torch.cuda.current_stream(1) != side
torch.cuda.manual_seed_all(9)
states = torch.cuda.get_rng_state_all()
a, b = torch.rand(4, device="cuda:0"), torch.rand(4, device="cuda:1")
assert a.tolist() == b.tolist() and len(states) == 2
torch.rand(4, device="cuda:1"); assert torch.equal(torch.cuda.get_rng_state(0).cpu(), torch.cuda.get_rng_state("cuda:0"))
assert not torch.equal(torch.cuda.get_rng_state(0), torch.cuda.get_rng_state(1))
torch.cuda.set_rng_state_all(states); assert torch.rand(4, device="cuda:1").tolist() == b.tolist()
own = torch.Generator("cuda:1"); assert own.device.index == 1
assert torch.cuda.get_device_properties(1).uuid != torch.cuda.get_device_properties(0).uuid
""")


def test_each_device_has_its_flavor_and_one_that_is_not_used_has_no_session() -> None:
    run(
        """
x = torch.ones(3, device="cuda:1")
assert x.sum().item() == 3
mine = [row["flavor"] for row in sessions() if row["state"] != "ended"]
assert mine == ["dev.4gb"], mine
assert [torch.cuda.get_device_properties(index).total_memory >> 30 for index in range(3)] == [1, 4, 1]
too_much = lambda: torch.empty(1 << 31, dtype=torch.uint8, device="cuda:2").add_(1).sum().item()
raises(torch.cuda.OutOfMemoryError, "limit of 1.00 GiB", too_much)
""",
        devices="dev.1gb,dev.4gb,dev.1gb",
    )


def test_a_failure_on_one_device_is_told_by_it_alone_and_names_the_line() -> None:
    run("""
good, table = torch.ones(3, device="cuda:0"), torch.ones(3, 2, device="cuda:1")
for number in (1, 7):  # the first call of a kind waits
    lost = torch.index_select(table, 0, torch.tensor([number], device="cuda:1"))
good = good * 2
torch.cuda.synchronize(0)
raises(RuntimeError, "<string>, line", lambda: torch.cuda.synchronize(1))
raises(RuntimeError, "index out of range", lambda: lost.to("cuda:0").cpu())
assert good.tolist() == [2, 2, 2] and table.sum().item() == 6
""")


def test_data_parallel_training_on_two_devices_equals_training_on_one() -> None:
    run("""
torch.manual_seed(0)
alone = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to("cuda:0")
both = torch.nn.DataParallel(copy.deepcopy(alone))
assert both.device_ids == [0, 1]
for _ in range(3):
    x = torch.randn(6, 4, device="cuda:0")
    for model in (alone, both):
        model.zero_grad()
        model(x).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
for one, other in zip(alone.parameters(), both.parameters()):
    torch.testing.assert_close(one, other)
import torch.cuda.comm
pieces = torch.cuda.comm.scatter(torch.arange(6., device="cuda:0"), [0, 1])
assert [piece.device.index for piece in pieces] == [0, 1] and torch.cuda.comm.gather(pieces, destination=1).tolist() == list(range(6))
assert torch.cuda.comm.reduce_add([piece * 0 + 1 for piece in pieces], 1).tolist() == [2, 2, 2]
""")


def test_sparse_tensors_go_from_device_to_device_and_do_not_mix() -> None:
    run("""
import warnings
warnings.simplefilter("ignore")
host = torch.eye(3).to_sparse()
for sparse in (host, host.to_sparse_csr()):
    there = sparse.to("cuda:1")
    assert there.device == torch.device("cuda:1") and there.values().device == there.device
    assert (there @ torch.ones(3, 2, device="cuda:1")).device == there.device
    back = there.to("cuda:0")
    assert back.device == torch.device("cuda:0") and torch.equal(back.to_dense().cpu(), torch.eye(3))
    raises(RuntimeError, "cuda:", lambda: there @ torch.ones(3, 2, device="cuda:0"))
made = torch.sparse_coo_tensor([[0, 0]], [1., 2.], (2,), device="cuda:1").coalesce()
assert made.device == torch.device("cuda:1") and made.values().tolist() == [3.0]
""")

"""Programs that fork as libraries do. Each prints what a test looks at."""

from __future__ import annotations

import os
from collections.abc import Mapping

REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 4}],
    "warm_workers": 2,
    "heartbeat_seconds": 0.2,
    "idle_release_seconds": 0.5,
}
"""A pool whose programs fork."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Ours, which of Forebay's variables has these alone."""
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")} | dict(variables)


HEAD = """
import multiprocessing, torch
from concurrent.futures import ProcessPoolExecutor

context = multiprocessing.get_context("fork")
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).to("cuda:0")
x = torch.randn(8, 16, device="cuda:0")
net(x).square().mean().backward()  # PyTorch's own children could compute no gradients after that
net.zero_grad()
before = {name: value.cpu() for name, value in net.state_dict().items()}

def trained(rate, of=net):
    optimizer = torch.optim.SGD(of.parameters(), rate)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = of(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def again(rate):
    net.load_state_dict(before)
    return trained(rate)

rates = [0.0, 1e-3, 0.5, float("inf")]

def same(one, other):
    return repr(one) == repr(other)  # nan is among them

def unchanged():
    return all(torch.equal(value.cpu(), before[name]) for name, value in net.state_dict().items())
"""

POOL = HEAD + """
with context.Pool(2) as pool:
    tried = pool.map(again, rates, chunksize=1)
print("pool", unchanged(), same(tried, [again(rate) for rate in rates]))
"""

PROCESSES = HEAD + """
asked, answered = context.Queue(), context.Queue()

def serve():
    while (rate := asked.get()) is not None:
        answered.put((rate, again(rate)))

processes = [context.Process(target=serve) for _ in range(2)]
for process in processes:
    process.start()
for rate in rates:
    asked.put(rate)
tried = dict(answered.get(timeout=60) for _ in rates)
for _ in processes:
    asked.put(None)
for process in processes:
    process.join()
print("processes", [process.exitcode for process in processes], unchanged(), same([tried[rate] for rate in rates], list(map(again, rates))))
"""

EXECUTOR = HEAD + """
with ProcessPoolExecutor(2, mp_context=context) as executor:
    tried = list(executor.map(again, rates))
print("executor", unchanged(), same(tried, list(map(again, rates))))
"""

JOBLIB = HEAD + """
import joblib
tried = joblib.Parallel(2, backend="multiprocessing")(joblib.delayed(again)(rate) for rate in rates)
print("multiprocessing", unchanged(), same(tried, list(map(again, rates))))

def alone(weight, factor):  # a process of loky's is a new one: it gets what it is given, and has a session of its own
    return (weight * factor).sum().item(), str(weight.device)

weight = net[0].weight.detach()
tried = joblib.Parallel(2, backend="loky")(joblib.delayed(alone)(weight, factor) for factor in (0.0, 1.0, -2.0))
print("loky", same(tried, [alone(weight, factor) for factor in (0.0, 1.0, -2.0)]))
"""

LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
from forebay import _C
torch.set_num_threads(1)
x = torch.ones(1000, device="cuda:0")
x.sum().item()
loader = DataLoader(TensorDataset(torch.arange(16.0)), batch_size=4, num_workers=2, multiprocessing_context="fork", persistent_workers=True)
for _ in range(3):
    for batch, in loader:
        x.add_(batch.sum().item())
del loader
print(x[0].item(), len(_C.reported_checkpoints(0)[0]))
"""

THREADS = """
import os, random, sys, threading, time, torch
torch.set_num_threads(1)
forks, users = map(int, sys.argv[1:])
stops, failures = threading.Event(), []

def train(seed):
    chance, generator = random.Random(seed), torch.Generator("cuda").manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)).to("cuda:0")
    optimizer = torch.optim.Adam(net.parameters())
    try:
        while not stops.is_set():
            rows = chance.randint(1, 40)  # a new size has a new template, and geometry that nobody knows yet
            optimizer.zero_grad()
            net(torch.randn(rows, 16, device="cuda:0", generator=generator)).square().mean().backward()
            optimizer.step()
            drawn = torch.rand(rows, rows + 1, device="cuda:0")
            torch.abs(drawn, out=torch.empty(0, device="cuda:0"))
            match chance.randrange(8):
                case 0:
                    drawn.sum().item()
                case 1:
                    torch.arange(100.0).pin_memory().to("cuda:0", non_blocking=True)
                case 2:
                    torch.nn.functional.scaled_dot_product_attention(*torch.rand(3, 1, 2, rows, 8, device="cuda:0"))
    except BaseException as error:
        failures.append(repr(error))

def child(number):
    if number >= users:
        return True
    weight = torch.ones(6, device="cuda:0", requires_grad=True)
    ((x * weight).sum() * torch.rand((), device="cuda:0").add_(1)).backward()
    return x.tolist() == [float(number)] * 6 and bool((weight.grad.cpu() >= number).all())

x = torch.arange(6.0, device="cuda:0")
x.sum().item()
threads = [threading.Thread(target=train, args=(seed,)) for seed in range(3)]
for thread in threads:
    thread.start()
time.sleep(0.5)
children = []
for number in reversed(range(forks)):
    x.fill_(number)
    pid = os.fork()
    if pid == 0:
        well = False
        try:
            well = child(number)
        finally:
            os._exit(not well)
    children.append(pid)
ended = [os.waitpid(pid, 0)[1] for pid in children]
stops.set()
for thread in threads:
    thread.join()
print(sum(map(bool, ended)), failures)
"""

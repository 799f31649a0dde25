"""Programs that lie are refused, or end their own worker; nobody else's session notices."""

from __future__ import annotations

import base64
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
from forebay_wire import stream
from forebay_wire.programs import Compiled, Execute, Program

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: pip install jax (90 MB)")
SEED = 20261130
PROGRAM = Path(__file__).with_name("hostile_programs.py")
MODULES, MODULES_FULL = 40, 1000
DEATHS_MAX = 20
"""In a thousand: XLA and MLIR are not made for hostile programs, and abort for some."""
DOUBLES = """module @double attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%x: tensor<4xf32>) -> (tensor<4xf32>) { %0 = stablehlo.add %x, %x : tensor<4xf32> return %0 : tensor<4xf32> } }"""


class Session:
    """One session at a worker of its own, which has compiled a program."""

    def __init__(self, worker: Any) -> None:
        self.worker, self.client = worker, worker.connect()
        assert isinstance(self.client.hello(), stream.Welcome)
        self.programs = 0
        self.given = self.client.upload(torch.arange(4.0))
        assert isinstance(self.compile(DOUBLES.encode()), Compiled)
        self.doubles = self.programs

    def compile(self, module: bytes) -> stream.Reply | None:
        """None where the worker is gone instead."""
        self.programs += 1
        try:
            self.client.send(Program(self.client.request(), self.programs, module))
            body = stream.read_frame(self.client.socket)
        except (ConnectionError, TimeoutError) as error:
            assert not isinstance(error, TimeoutError), "it neither answers nor ends"
            return None
        reply = None if body is None else stream.decode_reply(body)
        if isinstance(reply, stream.Failure):
            self.client.hear(reply)
        return reply

    def computes(self) -> bool:
        made = self.client.storage()
        self.client.send(Execute(self.doubles, (self.given,), (made,)))
        return bytes(self.client.read(made, 16)) == (2 * torch.arange(4.0)).numpy().tobytes()


@pytest.mark.parametrize("device", ["cpu:0"])
def test_a_hostile_program_ends_its_own_session_at_most(start_worker: Callable[..., Any], full_sweep: bool) -> None:
    count, seen, deaths = MODULES_FULL if full_sweep else MODULES, Counter[str](), []
    made = subprocess.run([fork_server.services(), PROGRAM, str(SEED), str(count)], stdout=subprocess.PIPE, check=True).stdout
    other, session = Session(start_worker()), Session(start_worker())
    sessions = [other, session]
    for number, module in enumerate(map(base64.b64decode, json.loads(made))):
        told = session.compile(module)
        seen[type(told).__name__] += 1
        if told is None:
            deaths.append((number, session.worker.process.wait(30)))
            assert other.computes(), number
            session = Session(start_worker())
            sessions.append(session)
        elif isinstance(told, stream.Failure):
            assert told.number == 0 and told.message, (number, told)
            assert number % 10 or session.computes(), number
        else:
            assert isinstance(told, Compiled), (number, told)
    assert session.computes() and other.computes()
    for one in sessions:
        one.client.socket.close()
    assert all(status < 0 for _, status in deaths), deaths
    assert len(deaths) * 1000 <= DEATHS_MAX * max(count, 1000), deaths
    assert seen.total() == count and seen["Failure"] > count // 2 and seen["Compiled"] > count // 50, seen


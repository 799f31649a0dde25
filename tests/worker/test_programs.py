"""Whole programs: compiled once, carried out on the session's storages, refused in a sentence, and precise where they fail."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from forebay_wire import messages, stream
from forebay_wire.programs import Callback, Compiled, Execute, ExecuteCalling, Placement, Program, ProgramArray, Returned
from forebay_wire.stream import FailureCode
from forebay_worker.user_code import programs

F32 = 11
MAIN = "module @jit_step attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} { func.func public @main"
STEP = (
    MAIN
    + """(%x: tensor<2x3xf32>, %y: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<2x3xf32>, tensor<2x3xf32>) {
  %sum = stablehlo.add %x, %y : tensor<2x3xf32>
  return %sum, %x : tensor<2x3xf32>, tensor<2x3xf32>
} }"""
)
"""x + y, and x."""
LARGE = "tensor<16777216xf32>"
FILL = f"{MAIN}() -> ({LARGE}) {{ %c = stablehlo.constant dense<1.0> : {LARGE} return %c : {LARGE} }} }}"
"""64 MiB of ones."""
FACTOR = (
    MAIN
    + """(%x: tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>) {
  %r:2 = stablehlo.custom_call @TARGET(%x) {mhlo.backend_config = {uplo = 76 : ui8}, operand_layouts = [dense<[0, 1]> : tensor<2xindex>],
    result_layouts = [dense<[0, 1]> : tensor<2xindex>, dense<> : tensor<0xindex>]} : (tensor<3x3xf32>) -> (tensor<3x3xf32>, tensor<i32>)
  return %r#0, %r#1 : tensor<3x3xf32>, tensor<i32>
} }"""
)
ASKS = (
    MAIN
    + """(%x: tensor<3xf32>) -> (tensor<3xf32>) {
  %t = stablehlo.create_token : !stablehlo.token
  %first:2 = stablehlo.custom_call @forebay_callback(%t, %x) {has_side_effect = true,
    mhlo.backend_config = {number = 7 : ui64}} : (!stablehlo.token, tensor<3xf32>) -> (!stablehlo.token, tensor<3xf32>)
  %second = stablehlo.custom_call @forebay_callback(%first#1) {has_side_effect = true,
    mhlo.backend_config = {number = 8 : ui64}} : (tensor<3xf32>) -> tensor<3xf32>
  return %second : tensor<3xf32>
} }"""
)
"""Calls back twice."""
ALONE, BOTH = Placement(), Placement(1, 2, (1, 0), True, True, (False,), (True,))
DIVIDED = """module @jit_step attributes {mhlo.num_partitions = 2 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2]>
  func.func public @main(%x: tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>},
                         %y: tensor<f32> {tf.aliasing_output = 1 : i32})
      -> (tensor<4x3xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}, tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %sum = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<4x3xf32>, tensor<f32>) -> tensor<f32>
    %all = stablehlo.add %sum, %y : tensor<f32>
    %wide = stablehlo.broadcast_in_dim %all, dims = [] : (tensor<f32>) -> tensor<4x3xf32>
    %made = stablehlo.add %x, %wide : tensor<4x3xf32>
    return %made, %all : tensor<4x3xf32>, tensor<f32>
  }
}"""
"""The sum of all of x and y, and x with that added; of x each device has two rows."""
REPLICATED = """module @pmap attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {
  func.func public @main(%x: tensor<3xf32>) -> tensor<3xf32> {
    %0 = "stablehlo.all_reduce"(%x) ({ ^bb0(%a: tensor<f32>, %b: tensor<f32>): %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32> }) {replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<3xf32>) -> tensor<3xf32>
    return %0 : tensor<3xf32>
  }
}"""

pytestmark = pytest.mark.skipif(find_spec("jax") is None, reason="JAX is not installed: pip install jax (90 MB)")


def compiled(client: Any, module: str | bytes, number: int = 1, placement: Placement = ALONE) -> stream.Reply:
    client.send(Program(client.request(), number, module.encode() if isinstance(module, str) else module, placement))
    return client.reply()  # type: ignore[no-any-return]


def floats(client: Any, storage: int, count: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(client.read(storage, 4 * count)), dtype=torch.float32)


@pytest.mark.parametrize("device", ["cpu:0"])
def test_a_program_is_compiled_once_and_makes_storages(client: Any) -> None:
    told = compiled(client, STEP)
    array = ProgramArray(F32, (2, 3))
    assert isinstance(told, Compiled)
    assert (told.name, told.inputs, told.outputs, told.donated) == ("jit_step", (array, array), (array, array), (1,))
    x, y = client.upload(torch.arange(6.0)), client.upload(torch.full((6,), 0.5))
    first, second = (client.storage(), client.storage()), (client.storage(), client.storage())
    client.send(Execute(1, (x, y), first), Execute(1, (first[0], y), second), stream.Free((x,)))
    assert torch.equal(floats(client, second[0], 6), torch.arange(6.0) + 1)
    assert torch.equal(floats(client, first[1], 6), torch.arange(6.0)), "what passes through is a copy"
    (_, theirs) = client.run(torch.ops.aten.add.Tensor, torch.ones(2), torch.ones(2))
    assert torch.equal(theirs[0], torch.full((2,), 2.0)), "beside calls of PyTorch's"


@pytest.mark.parametrize("device", ["cpu:0"])
def test_a_program_in_hlo_gives_up_none_of_its_inputs(client: Any) -> None:
    """TensorFlow's variables may have one buffer; the program says that a result may be written there."""
    from jaxlib import _jax

    module = _jax.mlir.mlir_module_to_xla_computation(STEP, use_tuple_args=False, return_tuple=False).as_serialized_hlo_module_proto()
    told = compiled(client, module)
    assert isinstance(told, Compiled)
    assert ([array.sizes for array in told.inputs], told.donated) == ([(2, 3), (2, 3)], ())
    x, y, made = client.upload(torch.arange(6.0)), client.upload(torch.full((6,), 0.5)), (client.storage(), client.storage())
    client.send(Execute(1, (x, y), made))
    assert torch.equal(floats(client, made[0], 6), torch.arange(6.0) + 0.5)
    assert torch.equal(floats(client, y, 6), torch.full((6,), 0.5))


REFUSED = {
    "a function of this process": (FACTOR.replace("TARGET", "xla_ffi_python_cpu_callback"), "xla_ffi_python_cpu_callback is not served"),
    "a callback of large arrays": (ASKS.replace("tensor<3xf32>", "tensor<3932161xf32>"), "a callback that takes or returns 15728644 bytes"),
    "any other symbol": (FACTOR.replace("TARGET", "system"), "the custom call system is not served"),
    "an operation that waits": (
        MAIN + """() -> () { return } func.func private @f(%x: tensor<f32>, %t: !stablehlo.token) -> !stablehlo.token {
  %0 = "stablehlo.outfeed"(%x, %t) : (tensor<f32>, !stablehlo.token) -> !stablehlo.token
  return %0 : !stablehlo.token
} }""",
        "stablehlo.outfeed is not served",
    ),
    "another dialect": (MAIN + "() -> () { %c = arith.constant 1 : i32 return } }", "arith.constant is not served"),
    "four bits": (MAIN + "(%x: tensor<2xi4>) -> (tensor<2xi4>) { return %x : tensor<2xi4> } }", "arrays of i4 are not served"),
    "sizes that are not known": (MAIN + "(%x: tensor<?xf32>) -> (tensor<?xf32>) { return %x : tensor<?xf32> } }", "is not served"),
}


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_not_served_is_refused_in_words_and_costs_nothing(client: Any, case: str) -> None:
    module, words = REFUSED[case]
    told = compiled(client, module)
    assert isinstance(told, stream.Failure)
    assert (told.code, told.number) == (FailureCode.UNSUPPORTED, 0) and words in told.message, told
    assert isinstance(compiled(client, STEP, number=2), Compiled), "the session goes on"


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize("module", [b"", b"rubbish", b"ML\xefR" + bytes(40), b"module {}", STEP.encode()[:200]])
def test_what_is_no_program_is_refused(client: Any, module: bytes) -> None:
    told = compiled(client, module)
    assert isinstance(told, stream.Failure) and told.number == 0
    assert isinstance(client.sync(), stream.Done)


@pytest.mark.parametrize("device", ["cpu:0"])
def test_a_factorization_goes_by_the_allow_list(client: Any) -> None:
    assert isinstance(compiled(client, FACTOR.replace("TARGET", "lapack_spotrf_ffi")), Compiled)
    x, out, info = client.upload(4 * torch.eye(3)), client.storage(), client.storage()
    client.send(Execute(1, (x,), (out, info)))
    assert torch.equal(floats(client, out, 9).reshape(3, 3), 2 * torch.eye(3))


@pytest.mark.parametrize("device", ["cpu:0"])
def test_memory_is_the_sessions_and_a_failure_is_precise(client: Any) -> None:
    """The worker has 256 MiB, and each of these takes 64."""
    assert isinstance(compiled(client, FILL), Compiled) and isinstance(compiled(client, STEP, 2), Compiled)
    made = [client.storage() for _ in range(5)]
    x = client.upload(torch.ones(6))
    after = client.storage(), client.storage()
    for storage in made:
        client.writer.add(Execute(1, (), (storage,)))
    client.send(Execute(2, (x, x), after))
    told = client.sync()
    assert isinstance(told, stream.Failure)
    assert (told.code, told.operator) == (FailureCode.OUT_OF_MEMORY, "xla::jit_step") and "out of memory" in told.message
    client.send(stream.Free(tuple(made[:2])), Execute(1, (), (client.storage(),)))
    assert isinstance(client.sync(), stream.Done), "what was freed is there again"
    client.send(Execute(2, (x, after[0]), (client.storage(), client.storage())))
    told = client.sync()
    assert isinstance(told, stream.Failure) and told.code == FailureCode.NEVER_MADE


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize("case", ["undefined", "too few", "no storage", "too small", "taken", "twice"])
def test_what_is_not_the_protocol_ends_the_session_alone(client: Any, case: str) -> None:
    compiled(client, STEP)
    x, small = client.upload(torch.ones(6)), client.upload(torch.ones(5))
    new = client.storage(), client.storage()
    wrong = {
        "undefined": Execute(7, (x, x), new),
        "too few": Execute(1, (x,), new),
        "no storage": Execute(1, (x, 12345), new),
        "too small": Execute(1, (x, small), new),
        "taken": Execute(1, (x, x), (x, new[0])),
        "twice": Program(client.request(), 1, STEP.encode()),
    }
    client.send(wrong[case])
    assert isinstance(client.reply(), stream.Refused)


NO_PLACEMENTS = [Placement(*counts, tuple(range(counts[0] * counts[1]))) for counts in ((0, 1), (1, 300), (17, 16))]


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize("placement", [*NO_PLACEMENTS, Placement(1, 2, (0, 0)), Placement(1, 1, (256,))])
def test_a_placement_that_cannot_be_ends_the_session_alone(client: Any, placement: Placement) -> None:
    assert isinstance(compiled(client, STEP, placement=placement), stream.Refused)


OF_TWO = ASKS.replace("num_partitions = 1", "num_partitions = 2")
AWAY = "is for device 2, and this session has 2 devices now"
ELSEWHERE = {
    "other partitions": (DIVIDED, ALONE, FailureCode.VALUE, "the program is for 2 partitions, and is to be compiled for 1"),
    "other replicas": (STEP, Placement(2, 1, (0, 1)), FailureCode.VALUE, "the program is for 1 replicas, and is to be compiled for 2"),
    "a device that there is not": (STEP, Placement(1, 1, (2,)), FailureCode.UNSUPPORTED, AWAY),
    "callbacks": (OF_TWO, BOTH, FailureCode.UNSUPPORTED, "callbacks in a program over several devices"),
}


@pytest.mark.parametrize("device", ["cpu:0,cpu:0"])
@pytest.mark.parametrize("case", list(ELSEWHERE))
def test_a_program_for_other_devices_is_refused_in_words(client: Any, case: str) -> None:
    module, placement, code, words = ELSEWHERE[case]
    told = compiled(client, module, placement=placement)
    assert isinstance(told, stream.Failure)
    assert (told.code, told.number) == (code, 0) and words in told.message, told
    assert isinstance(compiled(client, STEP, number=2), Compiled), "the session goes on"


@pytest.mark.parametrize("device", ["cpu:0"])
def test_a_session_of_one_device_takes_no_program_for_two(client: Any) -> None:
    told = compiled(client, DIVIDED, placement=BOTH)
    assert isinstance(told, stream.Failure) and "is for device 1, and this session has 1 device now" in told.message


@pytest.mark.parametrize("device", ["cpu:0,cpu:0"])
@pytest.mark.parametrize("homes", ["data-parallel", "scatter"])
def test_a_program_runs_on_two_devices(start_worker: Callable[..., Any], homes: str) -> None:
    """Wherever storages lie, and beside calls of PyTorch's. Inputs and outputs are of one device after the other, here 1 and 0."""
    client = start_worker("--homes", homes).connect()
    with client.socket:
        client.hello()
        array, scalar = ProgramArray(F32, (2, 3)), ProgramArray(F32, ())
        told = compiled(client, DIVIDED, placement=BOTH)
        assert isinstance(told, Compiled) and told.compiled
        assert (told.devices, told.inputs, told.outputs, told.donated) == (2, (array, scalar), (array, scalar), (1,))
        assert isinstance(compiled(client, STEP, 2, Placement(1, 1, (1,))), Compiled)
        x, more = torch.arange(12.0), torch.tensor([0.25])
        (first, last), each = (client.upload(part.clone()) for part in (x[:6], x[6:])), [client.upload(more) for _ in range(2)]
        (_, theirs) = client.run(torch.ops.aten.add.Tensor, torch.ones(2), torch.ones(2))
        made = [client.storage() for _ in range(4)]
        client.send(Execute(1, (first, each[0], last, each[1]), tuple(made)), stream.Free((first,)))
        all_of_it = float(x.sum()) + 0.25
        total = torch.tensor([all_of_it])
        for storage, expected in zip(made, (x[:6] + all_of_it, total, x[6:] + all_of_it, total), strict=True):
            assert torch.equal(floats(client, storage, expected.numel()), expected)
        after = client.storage(), client.storage()
        client.send(Execute(2, (made[0], last), after))
        assert torch.equal(floats(client, after[0], 6), x[:6] + all_of_it + x[6:])
        assert torch.equal(theirs[0], torch.full((2,), 2.0))


@pytest.mark.parametrize("device", ["cpu:0,cpu:0"])
def test_replicas_sum_what_each_has(client: Any) -> None:
    told = compiled(client, REPLICATED, placement=Placement(2, 1, (0, 1)))
    assert isinstance(told, Compiled) and told.devices == 2
    given, made = tuple(client.upload(torch.full((3,), value)) for value in (1.5, float("inf"))), (client.storage(), client.storage())
    client.send(Execute(1, given, made))
    for storage in made:
        assert torch.equal(floats(client, storage, 3), torch.full((3,), float("inf")))


@pytest.mark.parametrize("device", ["cpu:0,cpu:0"])
def test_memory_of_all_devices_is_the_limit_of_what_they_make(client: Any) -> None:
    """Both have 256 MiB together, and each execution takes 64 on each."""
    fill = FILL.replace("num_replicas = 1", "num_replicas = 2")
    assert isinstance(compiled(client, fill, placement=Placement(2, 1, (0, 1))), Compiled)
    made = [(client.storage(), client.storage()) for _ in range(3)]
    for storages in made:
        client.writer.add(Execute(1, (), storages))
    client.send()
    told = client.sync()
    assert isinstance(told, stream.Failure) and told.code == FailureCode.OUT_OF_MEMORY
    client.send(stream.Heard(told.number), stream.Free(made[0]), Execute(1, (), (client.storage(), client.storage())))
    assert isinstance(client.sync(), stream.Done), "what was freed is there again"


def calls(client: Any, x: int) -> tuple[int, Callback]:
    """Executes ASKS on the storage: what it makes, and what it calls first."""
    (told, made) = (compiled(client, ASKS), client.storage())
    assert isinstance(told, Compiled) and told.calls_back
    client.send(ExecuteCalling(client.request(), 1, (x,), (made,)))
    asked = client.reply()
    assert isinstance(asked, Callback) and (asked.callback, asked.arrays) == (7, (torch.arange(3.0).numpy().tobytes(),))
    return made, asked


@pytest.mark.parametrize("device", ["cpu:0"])
def test_a_program_calls_its_client_back(client: Any) -> None:
    made, first = calls(client, client.upload(torch.arange(3.0)))
    client.send(Returned((torch.full((3,), 5.0).numpy().tobytes(),)))
    second = client.reply()
    assert (second.request, second.callback, second.arrays) == (first.request, 8, (torch.full((3,), 5.0).numpy().tobytes(),))
    client.send(Returned((torch.full((3,), 6.0).numpy().tobytes(),)))
    done = client.reply()
    assert isinstance(done, stream.Done) and done.request == first.request
    assert torch.equal(floats(client, made, 3), torch.full((3,), 6.0))


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize(
    ("returned", "words"),
    [(Returned(failure="the user's own words"), "the user's own words"), (Returned((bytes(8),)), "cannot reshape"), (Returned(), "")],
)
def test_a_callback_that_fails_is_a_failure_of_the_program(client: Any, returned: Returned, words: str) -> None:
    made, asked = calls(client, client.upload(torch.arange(3.0)))
    client.send(returned)
    told = client.reply()
    assert isinstance(told, stream.Failure) and told.request == asked.request and words in told.message
    client.send(stream.Heard(told.number), stream.Free((made,)))
    assert isinstance(client.sync(), stream.Done), "the session goes on"


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.parametrize("case", ["another command", "returned unasked", "executed otherwise"])
def test_what_is_no_answer_to_a_callback_ends_the_session_alone(client: Any, case: str) -> None:
    x = client.upload(torch.arange(3.0))
    if case == "returned unasked":
        client.send(Returned())
    elif case == "executed otherwise":
        compiled(client, ASKS)
        client.send(Execute(1, (x,), (client.storage(),)))
    else:
        calls(client, x)
        client.send(stream.Free((x,)))
    refused = client.reply()
    while isinstance(refused, stream.Failure):
        refused = client.reply()
    assert isinstance(refused, stream.Refused)


def test_a_client_that_dies_within_a_callback_frees_the_worker(start_on_pool: Callable[..., Any]) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        calls(client, client.upload(torch.arange(3.0)))
    worker.pool.expect(messages.ClientGone)


@pytest.mark.parametrize("device", ["null:0"])
def test_a_device_that_takes_none_says_so(client: Any) -> None:
    told = compiled(client, STEP)
    assert isinstance(told, stream.Failure)
    assert (told.code, told.number, told.message) == (FailureCode.UNSUPPORTED, 0, programs.NOT_YET)


def test_what_programs_made_is_parked_on_disk_and_comes_back(start_on_pool: Callable[..., Any]) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    with client.socket:
        compiled(client, STEP)
        x, made = client.upload(torch.arange(6.0)), (client.storage(), client.storage())
        client.send(Execute(1, (x, x), made))
        worker.drain(client)
        worker.pool.send(messages.Park(host_bytes_max=0, spill_bytes_max=1 << 40))
        assert worker.pool.expect(messages.Parked).spilled_bytes == 3 * 24
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        worker.open()
        client.send(Execute(1, (made[0], x), after := (client.storage(), client.storage())))
        assert torch.equal(floats(client, after[0], 6), 3 * torch.arange(6.0))


def test_what_programs_made_goes_to_another_worker_and_the_program_is_compiled_there(start_on_pool: Callable[..., Any]) -> None:
    old, new = start_on_pool(device="cpu:0"), start_on_pool(device="cpu:0")
    client = old.serve()
    with client.socket:
        compiled(client, STEP)
        x, made = client.upload(torch.arange(6.0)), (client.storage(), client.storage())
        client.send(Execute(1, (x, x), made), stream.Leave(client.request()))
        assert isinstance(client.reply(), stream.Done)
        left = old.pool.expect(messages.Left)
    new.assign(messages.Source(address=left.address, ticket=left.ticket))
    new.pool.expect(messages.Assigned)
    again = new.client()
    with again.socket:
        new.open()
        assert isinstance(compiled(again, STEP), Compiled)
        again.next_storage = client.next_storage
        again.send(Execute(1, (made[0], x), after := (again.storage(), again.storage())))
        assert torch.equal(floats(again, after[0], 6), 3 * torch.arange(6.0))

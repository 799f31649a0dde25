"""State of PyTorch's that changes what calls give: each piece is flipped in mid-program, with all caches warm, and held against the CPU.

The table is in ``docs/reference/state.md``. The default dtype has a test of its own.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.testing import assert_close
from torch.utils import deterministic
from torch.utils._python_dispatch import TorchDispatchMode

Flip = Callable[[], AbstractContextManager[Any]]


class Passing(TorchFunctionMode):
    """Looks on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    """Looks on from below autograd."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def switched(get: Callable[[], Any], put: Callable[[Any], Any], value: Any) -> Flip:
    @contextlib.contextmanager
    def flip() -> Iterator[None]:
        before = get()
        put(value)
        try:
            yield
        finally:
            put(before)

    return flip


def attribute(owner: Any, name: str, value: Any) -> Flip:
    return switched(lambda: getattr(owner, name), lambda to: setattr(owner, name, to), value)


@contextlib.contextmanager
def deterministic_algorithms(warn_only: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


CUDA, CUDNN, MATMUL = torch.backends.cuda, torch.backends.cudnn, torch.backends.cuda.matmul
SAME_BITS: dict[str, Flip] = {
    "deterministic algorithms": lambda: deterministic_algorithms(False),
    "deterministic algorithms that warn": lambda: deterministic_algorithms(True),
    "another default dtype": switched(torch.get_default_dtype, torch.set_default_dtype, torch.float64),
    "another default device": lambda: torch.device("meta"),
    "fast products": switched(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "TF32 in products": attribute(MATMUL, "allow_tf32", True),
    "sums of reduced precision": attribute(MATMUL, "allow_bf16_reduced_precision_reduction", False),
    "sums of reduced precision without splits": switched(
        lambda: True, lambda to: setattr(MATMUL, "allow_fp16_reduced_precision_reduction", to), (False, False)
    ),
    "accumulation in half": attribute(MATMUL, "allow_fp16_accumulation", True),
    "no cuDNN": lambda: CUDNN.flags(enabled=False),
    "cuDNN's benchmark": lambda: CUDNN.flags(enabled=True, benchmark=True, allow_tf32=False),
    "cuDNN's deterministic algorithms": lambda: CUDNN.flags(enabled=True, deterministic=True, allow_tf32=True),
    "no oneDNN": lambda: torch.backends.mkldnn.flags(enabled=False),
    "no NNPACK": lambda: torch.backends.nnpack.flags(enabled=False),
    "denormal numbers flushed": switched(lambda: False, torch.set_flush_denormal, True),
    "one thread": switched(torch.get_num_threads, torch.set_num_threads, 1),
    "all warnings": switched(torch.is_warn_always_enabled, torch.set_warn_always, True),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "one thread of autograd": lambda: torch.autograd.set_multithreading_enabled(False),
    "views that are replayed": lambda: torch.autograd._force_original_view_tracking(False),
    "invariants of sparse tensors": lambda: torch.sparse.check_sparse_tensor_invariants(True),
    "saved tensors on the host": lambda: torch.autograd.graph.save_on_cpu(),
    "a mode of functions": Passing,
    "a mode of operators": Dispatching,
    "no planned contractions": attribute(torch.backends.opt_einsum, "enabled", False),
    "parameters that are swapped": switched(
        torch.__future__.get_swap_module_params_on_conversion, torch.__future__.set_swap_module_params_on_conversion, True
    ),
}
OTHER_KERNELS: dict[str, Flip] = {
    "attention of parts": lambda: sdpa_kernel(SDPBackend.MATH),
    "flash attention": lambda: sdpa_kernel(SDPBackend.FLASH_ATTENTION),
    "efficient attention": lambda: sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION),
    "cuDNN's attention": lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION),
    "no fast path of attention": switched(torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, False),
}


def program(device: str) -> list[torch.Tensor]:
    """Some of what the flips are about, in float32: convolutions, products, attention, sums at indices, quotients, a step of training."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 16))
    model = model.float().to_empty(device=device)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            places = torch.arange(parameter.numel(), device=device, dtype=torch.float32)
            parameter.copy_(((places + number) * 0.37).sin().reshape(parameter.shape) * 0.3)
    model[1].reset_running_stats()
    picture = (torch.arange(144, device=device, dtype=torch.float32) * 0.11).cos().reshape(2, 2, 6, 6)
    hidden = model(picture)
    heads = hidden.reshape(1, 2, 4, 4)
    attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
    indices = torch.tensor([0, 1, 1, 0], device=device)
    gathered = torch.zeros(2, 4, device=device, dtype=torch.float32).index_add(0, indices, attended[0, 0])
    gathered = gathered.scatter_add(1, indices[None].expand(2, 4), gathered)
    loss = gathered.cumsum(1).square().mean() + torch.einsum("bi,bj->ij", hidden, hidden).mean() + (indices / 3).sum().float()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    return [loss.detach(), attended.detach(), *(parameter.detach() for parameter in model.parameters()), model[1].running_var]


@pytest.fixture(scope="module")
def on_host() -> list[torch.Tensor]:
    return program("cpu")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*SAME_BITS, *OTHER_KERNELS])
def test_a_program_gives_the_cpu_s_results_while_a_state_is_flipped_and_after(name: str, on_host: list[torch.Tensor]) -> None:
    flip = (SAME_BITS | OTHER_KERNELS)[name]
    before = [program("cuda") for _ in range(3)][-1]
    with flip():
        flipped = [program("cuda") for _ in range(2)][-1]
    after = program("cuda")
    for number, host in enumerate(on_host):
        assert_close(flipped[number].cpu(), host, rtol=2e-5, atol=1e-6)
        assert torch.equal(before[number], after[number])
        assert name in OTHER_KERNELS or torch.equal(before[number], flipped[number])


def test_memory_is_filled_where_deterministic_algorithms_ask_for_it_and_only_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> list[torch.Tensor]:
        grown = torch.ones(2, device="cuda").resize_(4)
        whole = torch.empty(3, dtype=torch.int16, device="cuda")
        kinds = (
            torch.ones(2, device="cuda").new_empty(2),
            torch.empty_strided((2, 2), (1, 2), device="cuda"),
            torch.empty(2, dtype=torch.complex64, device="cuda"),
        )
        return [grown[2:], *kinds, whole]

    for _ in range(3):
        made()
    with deterministic_algorithms(False):
        *fractions, whole = made()
        assert all(one.isnan().all() for one in fractions) and whole.tolist() == [2**15 - 1] * 3
        monkeypatch.setattr(deterministic, "fill_uninitialized_memory", False)
        assert not any(one.isnan().any() for one in made()[:-1]), "a worker gives zeros"
        monkeypatch.undo()
    assert not any(one.isnan().any() for one in made()[:-1])


def test_results_belong_to_inference_mode_and_to_autograd_as_on_the_cpu() -> None:
    def seen(device: str) -> list[bool]:
        x, found = torch.ones(3, device=device, requires_grad=True), []
        for _ in range(2):
            for mode in (contextlib.nullcontext, torch.inference_mode, torch.no_grad, torch.enable_grad):
                with mode():
                    y = (x * 2).view(3, 1)
                    found += [y.is_inference(), y.requires_grad, y._is_view(), (x.detach() + 1).is_inference()]
        return found

    assert seen("cuda") == seen("cpu")
    with torch.inference_mode():
        y = torch.ones(3, device="cuda") * 2
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        y.add_(1)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        torch.ones(3, device="cuda", requires_grad=True) * y


def test_autocast_casts_within_it_alone_and_keeps_no_weight_that_has_changed() -> None:
    weight, x = torch.full((4, 4), 1 / 3, device="cuda", requires_grad=True), torch.ones(2, 4, device="cuda")
    for _ in range(2):
        for dtype in (torch.float16, torch.bfloat16):
            assert (x @ weight).dtype == torch.float32
            with torch.autocast("cuda", dtype):
                one = x @ weight
                with torch.autocast("cuda", enabled=False):
                    assert (x @ weight).dtype == torch.float32
                assert one.dtype == dtype and (x @ weight).dtype == dtype
            assert torch.equal(one, x.to(dtype) @ weight.detach().to(dtype))
            with torch.no_grad():
                weight.add_(1)
    with torch.autocast("cuda", cache_enabled=False):
        x @ weight
        with torch.no_grad():
            weight.zero_()
        assert (x @ weight).count_nonzero() == 0


def test_an_index_out_of_a_sparse_tensor_is_refused_where_it_is_made_while_invariants_are_checked() -> None:
    def make() -> torch.Tensor:
        return torch.sparse_coo_tensor(torch.tensor([[0, 5]]), torch.ones(2), (3,), device="cuda")

    with torch.sparse.check_sparse_tensor_invariants(False):
        made = make()
    with torch.sparse.check_sparse_tensor_invariants(True), pytest.raises(RuntimeError, match="found index 5"):
        make()
    with torch.sparse.check_sparse_tensor_invariants(False):
        make()
        with pytest.raises(RuntimeError, match="found index 5"):  # where native kernels would read what is not theirs
            made.to_dense().cpu()


def test_anomaly_mode_finds_a_gradient_that_is_no_number() -> None:
    def run() -> None:
        x = torch.zeros(2, device="cuda", requires_grad=True)
        (x.sqrt() * 0).sum().backward()

    for _ in range(2):
        run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.set_detect_anomaly(True), pytest.raises(RuntimeError, match="Function 'SqrtBackward0' returned nan values"):
            run()
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            run()
    run()


def test_a_warning_that_comes_once_comes_each_time_while_all_are_asked_for() -> None:
    def count() -> int:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(3):
                torch.ones(2, 2, 2, device="cuda").T  # noqa: B018 it warns
        return len(seen)

    count()
    assert count() == 0
    with switched(torch.is_warn_always_enabled, torch.set_warn_always, True)():
        assert count() == 3
    assert count() == 0


def test_calls_mean_the_same_at_each_level_of_vmap_and_beneath_fake_tensors() -> None:
    def results(device: str) -> list[torch.Tensor]:
        x = torch.arange(24, device=device, dtype=torch.float32).reshape(2, 3, 4)
        weights = torch.arange(4, device=device, dtype=torch.float32)
        found = []
        for _ in range(2):
            found.append(x @ weights)
            found.append(torch.vmap(lambda row: row @ weights)(x))
            found.append(torch.vmap(torch.vmap(lambda row: row * weights + row.sum()))(x))
            found.append(torch.vmap(lambda row: row / row.max(), in_dims=2)(x))
            with FakeTensorMode():
                fake = torch.arange(24, device=device, dtype=torch.float32).reshape(2, 3, 4)
                assert (fake @ torch.ones(4, device=device)).shape == (2, 3)
            found.append(torch.func.grad(lambda y: (y @ weights).square().sum())(x))
        return found

    for there, host in zip(results("cuda"), results("cpu"), strict=True):
        assert_close(there.cpu(), host)


def test_factories_make_tensors_where_the_default_device_is() -> None:
    kept = torch.arange(6, device="cuda").reshape(2, 3)
    stored, old, written = pickle.dumps(kept), io.BytesIO(), io.BytesIO()
    torch.save(kept, old, _use_new_zipfile_serialization=False)
    torch.save({"kept": kept}, written)
    for device in ("cuda", "cpu", "meta", "cuda:0"):
        for enter in (lambda device=device: torch.device(device), switched(torch.get_default_device, torch.set_default_device, device)):
            with enter():
                assert torch.zeros(2).device.type == device.partition(":")[0]
                assert torch.equal(pickle.loads(stored), kept)  # noqa: S301 this test wrote it
                for file, name in ((old, None), (written, "kept")):
                    for weights_only in (True, False):
                        file.seek(0)
                        loaded = torch.load(file, weights_only=weights_only)
                        assert torch.equal(loaded if name is None else loaded[name], kept)
                torch.cuda.manual_seed(7)
                state = torch.cuda.get_rng_state()
                drawn = torch.rand(3, device="cuda")
                torch.cuda.set_rng_state(state)
                assert torch.equal(torch.rand(3, device="cuda"), drawn)
                assert kept.cpu().sum().item() == 15 and "15" in repr(kept.sum()) and kept.to("cpu").to("cuda").is_cuda
    assert torch.zeros(2).device.type == "cpu"


@pytest.mark.filterwarnings("ignore:torch.set_default_tensor_type")
def test_a_default_tensor_type_of_cuda_is_a_default_dtype_and_a_default_device() -> None:
    try:
        for given in (torch.cuda.DoubleTensor, "torch.cuda.HalfTensor", "torch.cuda.DoubleTensor"):
            torch.set_default_tensor_type(given)
            made = torch.zeros(2)
            assert made.is_cuda and made.dtype == (torch.float16 if given == "torch.cuda.HalfTensor" else torch.float64)
        with pytest.raises(TypeError, match="only floating-point types"):
            torch.set_default_tensor_type("torch.cuda.LongTensor")
        torch.set_default_tensor_type(torch.FloatTensor)
        assert torch.zeros(2).device.type == "cpu" and torch.zeros(2).dtype == torch.float32
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)


def test_what_steers_speed_alone_is_kept() -> None:
    plans = CUDA.cufft_plan_cache
    assert plans.size == 0 and plans.max_size == 4096
    plans.max_size = 7
    plans.clear()
    assert plans[0].max_size == 7
    with attribute(CUDNN, "benchmark_limit", 3)():
        assert CUDNN.benchmark_limit == 3


def test_libraries_of_a_vendor_cannot_be_preferred_and_a_refusal_says_so() -> None:
    assert CUDA.preferred_linalg_library() == torch._C._LinalgBackend.Default
    with pytest.raises(RuntimeError, match="Cannot set preferred backend to MAGMA"):
        CUDA.preferred_linalg_library("magma")
    with pytest.raises(RuntimeError, match="Cannot set preferred backend to cuBLASLt"):
        CUDA.preferred_blas_library("cublaslt")

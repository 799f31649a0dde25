"""Lists of tensors, custom operators, autograd functions and autocast: PyTorch's databases of them, on the device against the CPU."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.common_device_type import instantiate_device_type_tests, ops
from torch.testing._internal.common_methods_invocations import (
    foreach_binary_op_db,
    foreach_other_op_db,
    foreach_pointwise_op_db,
    foreach_reduce_op_db,
    foreach_unary_op_db,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.custom_op_db import custom_op_db
from torch.utils import _pytree

pytestmark = pytest.mark.filterwarnings("ignore")

SAMPLES_MAX = 8
FOREACH = list(chain(foreach_unary_op_db, foreach_binary_op_db, foreach_pointwise_op_db, foreach_reduce_op_db, foreach_other_op_db))
NOT_RUN = {  # of the lists of autocast
    "cudnn_convolution",  # a vendor's kernel, which a CPU worker has not
    "cudnn_convolution_transpose",
    "einsum",  # the list's arguments do not fit its equation
}
HOST_ALIASES = {"NumpyExpMarkDirtyAutogradFunction"}  # writes through numpy, which shares a CPU tensor's memory and no device's


def moved(value: Any, device: str) -> Any:
    """A copy with its tensors there; leaves of autograd stay leaves."""

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
        return torch.device(device) if isinstance(leaf, torch.device) else leaf

    return _pytree.tree_map(move, value)


def gradients(arguments: Any, results: Any) -> list[torch.Tensor | None]:
    leaves = [leaf for leaf in _pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    sums = [leaf.sum() for leaf in _pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    return list(torch.autograd.grad(sums, leaves, allow_unused=True)) if sums and leaves else []


class TestFunctions(TestCase):
    def _check(self, op: Any, function: Any, device: str, dtype: torch.dtype, requires_grad: bool) -> int:
        """How many samples were compared: not those that the CPU refuses."""
        compared = 0
        torch.manual_seed(0)
        for sample in islice(op.sample_inputs("cpu", dtype, requires_grad=requires_grad), SAMPLES_MAX):
            given = (sample.input, sample.args, sample.kwargs)
            here, there = moved(given, "cpu"), moved(given, device)
            try:
                expected = function(here[0], *here[1], **here[2])
                expected_gradients = gradients(here, expected) if requires_grad else []
            except (RuntimeError, TypeError, IndexError):
                continue  # not of this dtype or of these arguments, or without a derivative there
            actual = function(there[0], *there[1], **there[2])
            exact_types = not (op.name == "_foreach_pow" and dtype == torch.bool)  # PyTorch's kernels for meta tensors widen such powers
            self.assertEqual(actual, expected, exact_device=False, exact_dtype=exact_types)
            self.assertEqual(there[0], here[0], exact_device=False, exact_dtype=exact_types)
            if requires_grad:
                self.assertEqual(gradients(there, actual), expected_gradients, exact_device=False)
            compared += 1
        return compared

    def _must_compare(self, compared: int) -> None:
        if compared == 0:
            self.skipTest("the CPU refuses every sample, so there is nothing to compare with")

    @ops(FOREACH, allowed_dtypes=(torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64))
    def test_an_operator_over_a_list_gives_the_cpu_s_results(self, device: str, dtype: torch.dtype, op: Any) -> None:
        functions = [function for function in (op.op, op.inplace_variant) if function is not None]
        self._must_compare(sum(self._check(op, function, device, dtype, requires_grad=False) for function in functions))

    @ops([op for op in FOREACH if op.supports_autograd and op.op is not None], allowed_dtypes=(torch.float32,))
    def test_an_operator_over_a_list_gives_the_cpu_s_gradients(self, device: str, dtype: torch.dtype, op: Any) -> None:
        self._must_compare(self._check(op, op.op, device, dtype, requires_grad=True))

    @ops([op for op in autograd_function_db + custom_op_db if op.name not in HOST_ALIASES], allowed_dtypes=(torch.float32,))
    def test_functions_and_operators_of_users_give_the_cpu_s_results_and_gradients(self, device: str, dtype: torch.dtype, op: Any) -> None:
        self.assertGreater(self._check(op, op.op, device, dtype, requires_grad=True), 0)


class TestAutocast(TestCase):
    """As CUDA casts: every operator of PyTorch's lists, its result's type and value."""

    def _check(
        self, names: list[str], namespaces: tuple[Any, ...], run_as: torch.dtype, device: str, given_type: torch.dtype | None = None
    ) -> None:
        lists = AutocastTestLists(torch.device(device))
        for case in chain.from_iterable(getattr(lists, name) for name in names):
            name, arguments, *rest = case
            if name in NOT_RUN:
                continue
            options = rest[0] if rest and isinstance(rest[0], dict) else {}
            function = next(getattr(space, name) for space in namespaces if hasattr(space, name))
            with self.subTest(operator=name):
                cast = _pytree.tree_map(
                    lambda leaf: leaf.to(run_as) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, arguments
                )
                with torch.autocast(device, dtype=torch.float16):
                    actual = function(*arguments, **options)
                self.assertEqual(actual, function(*cast, **options))

    def test_what_autocast_runs_in_half_precision_is_what_half_precision_gives(self, device: str) -> None:
        self._check(["torch_fp16", "nn_fp16", "linalg_fp16"], (torch, torch._C._nn, torch._C._linalg), torch.float16, "cuda")

    def test_what_autocast_runs_in_single_precision_is_what_single_precision_gives(self, device: str) -> None:
        self._check(["torch_fp32", "nn_fp32"], (torch, torch._C._nn), torch.float32, "cuda")

    def test_what_autocast_widens_is_what_single_precision_gives(self, device: str) -> None:
        self._check(["torch_need_autocast_promote"], (torch,), torch.float32, "cuda")


instantiate_device_type_tests(TestFunctions, globals(), only_for="cuda")
instantiate_device_type_tests(TestAutocast, globals(), only_for="cuda")

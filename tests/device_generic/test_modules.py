"""Every module of ``module_db``: results, gradients, buffers and state on the device, against the CPU."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_modules import ModuleInfo, module_db, modules
from torch.testing._internal.common_utils import TestCase
from torch.utils import _pytree

pytestmark = pytest.mark.filterwarnings("ignore")

RANDOM = {
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "AlphaDropout",
    "FeatureAlphaDropout",
    "RReLU",
    "FractionalMaxPool2d",
    "FractionalMaxPool3d",
}


def on_device(value: Any, device: str) -> Any:
    """The same arguments there; leaves of autograd stay leaves, and a tensor that comes twice does so there."""
    moved: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in moved:
            moved[id(leaf)] = leaf.detach().clone().to(device).requires_grad_(leaf.requires_grad)
        return moved[id(leaf)]

    return _pytree.tree_map(move, value)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def gradients(module: torch.nn.Module, arguments: Any, results: Any) -> list[torch.Tensor | None]:
    """Of all parameters and arguments, of the sum of all results."""
    leaves = [leaf for leaf in (*module.parameters(), *tensors_in(arguments)) if leaf.requires_grad]
    differentiable = [result for result in tensors_in(results) if result.requires_grad]
    if not leaves or not differentiable:
        return []
    return list(torch.autograd.grad([result.sum() for result in differentiable], leaves, allow_unused=True))


class TestModules(TestCase):
    def _pairs(self, info: ModuleInfo, device: str, dtype: torch.dtype, training: bool) -> Any:
        """Module and arguments on the CPU, and the same on the device, for each input of the database."""
        torch.manual_seed(0)
        inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for given in inputs:
            if given.forward_input is None:
                continue
            module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs).to(dtype)
            module.train(training)
            arguments = (given.forward_input.args, given.forward_input.kwargs)
            if info.is_lazy:
                module(*arguments[0], **arguments[1])
            yield module, arguments, copy.deepcopy(module).to(device), on_device(arguments, device)

    @modules(module_db, allowed_dtypes=(torch.float32, torch.float64))
    def test_results_gradients_and_buffers_are_the_cpu_s(
        self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool
    ) -> None:
        for module, arguments, there, moved in self._pairs(module_info, device, dtype, training):
            expected = module(*arguments[0], **arguments[1])
            actual = there(*moved[0], **moved[1])
            self.assertEqual([result.shape for result in tensors_in(expected)], [result.shape for result in tensors_in(actual)])
            self.assertTrue(all(result.is_cuda for result in tensors_in(actual)))
            if training and module_info.module_cls.__name__ in RANDOM:
                gradients(there, moved, actual)
                continue
            self.assertEqual(actual, expected, exact_device=False)
            self.assertEqual(gradients(there, moved, actual), gradients(module, arguments, expected), exact_device=False)
            self.assertEqual(list(there.buffers()), list(module.buffers()), exact_device=False)

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_state_goes_through_a_file_and_back(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        for module, _, there, moved in self._pairs(module_info, device, dtype, training):
            file = io.BytesIO()
            torch.save(there.state_dict(), file)
            file.seek(0)
            other = copy.deepcopy(module).to(device)
            with torch.no_grad():
                for parameter in other.parameters():
                    parameter.zero_()
            other.load_state_dict(torch.load(file, weights_only=True))
            self.assertEqual(other.state_dict(), module.state_dict(), exact_device=False)
            if not training or module_info.module_cls.__name__ not in RANDOM:
                self.assertEqual(other(*moved[0], **moved[1]), there(*moved[0], **moved[1]))

    @modules(module_db, allowed_dtypes=(torch.float32,))
    def test_a_module_is_made_on_the_device(self, device: str, dtype: torch.dtype, module_info: ModuleInfo, training: bool) -> None:
        for given in module_info.module_inputs_func(module_info, device=device, dtype=dtype, requires_grad=False, training=training):
            arguments, options = given.constructor_input.args, given.constructor_input.kwargs
            with torch.device(device):
                module = module_info.module_cls(*arguments, **options)
            self.assertTrue(all(tensor.is_cuda for tensor in (*module.parameters(), *module.buffers())))


instantiate_device_type_tests(TestModules, globals(), only_for="cuda")

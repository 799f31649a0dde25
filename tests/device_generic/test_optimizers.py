"""Every optimizer of ``optim_db`` with each of its options, in each of its implementations: parameters and state against the CPU."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import OptimizerInfo, OptimizerInput, optim_db, optims
from torch.testing._internal.common_utils import TestCase

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 3
DENSE = [info for info in optim_db if not info.only_supports_sparse_grads]


def parameters(info: OptimizerInfo, dtype: torch.dtype) -> list[torch.nn.Parameter]:
    """A few matrices; vectors and scalars too where the optimizer takes them."""
    generator = torch.Generator().manual_seed(5)
    shapes: list[tuple[int, ...]] = [(4, 3), (7, 2)] if info.optim_cls is torch.optim.Muon else [(4, 3), (5,), (), (2, 2, 3)]
    return [torch.nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def on_device(params: list[torch.nn.Parameter], device: str) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(parameter.detach().clone().to(device)) for parameter in params]


def step(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], number: int) -> None:
    """One step against gradients that depend on the parameters, by a closure as LBFGS wants it."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = sum(((parameter - 0.1 * number) ** 2).sum() for parameter in params)  # type: ignore[assignment]
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)


def variants(info: OptimizerInfo, device: str, dtype: torch.dtype) -> Any:
    """All options of the database, each plain, foreach and fused where the optimizer has that."""
    given: list[OptimizerInput] = info.optim_inputs_func(device=device, dtype=dtype)
    for options in given:
        implementations: list[dict[str, bool]] = [{}]
        if "foreach" in info.supported_impls:
            implementations += [{"foreach": False}, {"foreach": True}]
        if "fused" in info.supported_impls and "cuda" in info.supports_fused_on and not options.kwargs.get("capturable"):
            implementations.append({"fused": True})
        if "differentiable" in options.kwargs:
            implementations = [{}]
        for implementation in implementations:
            yield {**options.kwargs, **implementation}


def on_cpu(options: dict[str, Any]) -> dict[str, Any]:
    """The same for the CPU, which has no capturable implementation."""
    plain = {name: value for name, value in options.items() if name not in ("foreach", "fused", "capturable")}
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in plain.items()}


class TestOptimizers(TestCase):
    @optims(DENSE, dtypes=[torch.float32, torch.float64])
    def test_parameters_after_some_steps_are_the_cpu_s(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for options in variants(optim_info, device, dtype):
            with self.subTest(options=str(options)):
                here = parameters(optim_info, dtype)
                there = on_device(here, device)
                expected = optim_info.optim_cls(here, **on_cpu(options))
                actual = optim_info.optim_cls(there, **copy.deepcopy(options))
                for number in range(STEPS):
                    step(expected, here, number)
                    step(actual, there, number)
                self.assertEqual(there, here, exact_device=False)

    @optims(DENSE, dtypes=[torch.float32])
    def test_state_goes_through_a_file_and_training_goes_on(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        for options in variants(optim_info, device, dtype):
            with self.subTest(options=str(options)):
                there = on_device(parameters(optim_info, dtype), device)
                optimizer = optim_info.optim_cls(there, **copy.deepcopy(options))
                step(optimizer, there, 0)
                file = io.BytesIO()
                torch.save(optimizer.state_dict(), file)
                file.seek(0)
                again = on_device(there, device)
                restored = optim_info.optim_cls(again, **copy.deepcopy(options))
                restored.load_state_dict(torch.load(file, weights_only=True))
                for number in range(1, STEPS):
                    step(optimizer, there, number)
                    step(restored, again, number)
                self.assertEqual(again, there)

    @optims([info for info in DENSE if "fused" in info.supported_impls and "cuda" in info.supports_fused_on], dtypes=[torch.float32])
    def test_a_fused_step_heeds_a_gradient_scaler(self, device: str, dtype: torch.dtype, optim_info: OptimizerInfo) -> None:
        here = parameters(optim_info, dtype)
        there = on_device(here, device)
        expected, actual = optim_info.optim_cls(here, lr=0.1), optim_info.optim_cls(there, lr=0.1, fused=True)
        scaler = torch.amp.GradScaler(device, init_scale=64.0, growth_interval=2)
        for number in range(4):
            overflows = number == 1
            for optimizer, params in ((expected, here), (actual, there)):
                optimizer.zero_grad()
                loss: Any = sum(((parameter - 0.1 * number) ** 2).sum() for parameter in params)
                (scaler.scale(loss) if optimizer is actual else loss).backward()
            if overflows:
                there[0].grad.fill_(float("inf"))  # type: ignore[union-attr]
            else:
                expected.step()
            scaler.step(actual)
            scaler.update()
        self.assertEqual(there, here, exact_device=False)
        self.assertEqual(scaler.get_scale(), 64.0)


instantiate_device_type_tests(TestOptimizers, globals(), only_for="cuda")

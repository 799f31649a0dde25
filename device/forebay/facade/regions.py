"""Higher-order operators in a graph of ``torch.compile``: operators that take a part of the program, such as a checkpoint or a loop.

PyTorch relies on AOTAutograd for them: it marks what a checkpoint computes again, and AOTAutograd keeps the random numbers that this needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from forebay.errors import NotOnVirtualDevice

TRACED = frozenset({"tag_activation_checkpoint", "wrap_activation_checkpoint", "invoke_subgraph"})
"""Operators that do not train as they stand in a graph, not even by the backend ``eager``."""
TRAINED_AS_THEY_STAND = frozenset(
    {
        "associative_scan",
        "autograd_function_apply",
        "cond",
        "flex_attention",
        "map_impl",
        "scan",
        "triton_kernel_wrapper_functional",
        "triton_kernel_wrapper_mutation",
        "while_loop",
        "wrap",
        "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    }
)
"""Operators that are right as they stand in a graph, and as fast as without a compiler. What is not known here is traced."""
SAME_NUMBERS = TRACED | {
    "autograd_function_apply",
    "scan",
    "triton_kernel_wrapper_functional",
    "triton_kernel_wrapper_mutation",
    "wrap",
    "wrap_with_autocast",
    "wrap_with_set_grad_enabled",
}
"""Operators whose backward pass has the random numbers of the forward pass."""
WITHOUT_DERIVATIVE = frozenset({"call_torchbind", "hints_wrapper", "inline_asm_elementwise", "out_dtype", "run_const_graph", "strict_mode"})
"""Operators that PyTorch has no derivative of. AOTAutograd takes its absence for a gradient of nothing."""
AVOIDANCE = (
    "its backward pass computes the forward pass again, with other random numbers, so gradients would be wrong; "
    "draw the numbers before it, and give it the result as an operand."
)
NO_DERIVATIVE = "PyTorch has no derivative of it; leave it out, or compute it under torch.no_grad()."


def _is_higher_order(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and isinstance(node.target, torch._ops.HigherOrderOperator)


def _calls(graph: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.GraphModule, torch.fx.Node]]:
    """The calls of higher-order operators, with the graph that each stands in."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from ((module, node) for node in module.graph.nodes if _is_higher_order(node))


def _name(node: torch.fx.Node) -> str:
    operator: Any = node.target
    return str(operator.name())


def needs_tracing(graph: torch.fx.GraphModule, among: frozenset[str] | None = None) -> bool:
    """Whether AOTAutograd has to make the graph's two passes; ``among`` names the only operators to look for."""
    names = {_name(node) for _, node in _calls(graph)}
    return bool(names - TRAINED_AS_THEY_STAND if among is None else names & among)


def refusal(graph: torch.fx.GraphModule) -> NotOnVirtualDevice | None:
    """What is said of a graph whose gradients would be wrong, whichever backend compiles it."""
    for module, node in _calls(graph):
        name = _name(node)
        if name in WITHOUT_DERIVATIVE and _is_trained(node):
            return NotOnVirtualDevice(f"torch.ops.higher_order.{name} with gradients", NO_DERIVATIVE)
        if name not in SAME_NUMBERS and _is_trained(node) and any(map(_draws, _bodies(module, node))):
            return NotOnVirtualDevice(f"torch.ops.higher_order.{name} with random numbers and gradients", AVOIDANCE)
    return None


def _is_trained(node: torch.fx.Node) -> bool:
    results = tree_leaves(node.meta.get("example_value"))
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in results)


def _bodies(module: torch.fx.GraphModule, node: torch.fx.Node) -> Iterator[torch.fx.GraphModule]:
    """The parts of the program that an operator is given."""
    for given in node.all_input_nodes:
        body = module.get_submodule(str(given.target)) if given.op == "get_attr" and _is_module(module, given) else None
        if isinstance(body, torch.fx.GraphModule):
            yield body


def _is_module(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    return str(node.target) in dict(module.named_modules())


def _draws(body: torch.fx.GraphModule) -> bool:
    """Whether a random number is drawn in it: each of its calls is tried on tensors without content."""
    mode = next((value.fake_mode for value in _fakes(body)), None)
    if mode is None:
        return False
    with torch.no_grad(), mode:
        modules = [module for module in body.modules() if isinstance(module, torch.fx.GraphModule)]
        return any(_is_random(module, node) for module in modules for node in module.graph.nodes)


def _fakes(body: torch.fx.GraphModule) -> Iterator[Any]:
    from torch._subclasses.fake_tensor import FakeTensor

    for module in body.modules():
        if isinstance(module, torch.fx.GraphModule):
            values = tree_leaves([node.meta.get("example_value") for node in module.graph.nodes])
            yield from (value for value in values if isinstance(value, FakeTensor))


def _is_random(module: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    if node.op not in ("call_function", "call_method", "call_module") or _is_higher_order(node):
        return False
    given, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda one: one.meta.get("example_value"))
    given, named = tree_map_only(torch.Tensor, lambda value: value.detach(), (given, named))  # its geometry may change
    target: Any = node.target
    if node.op == "call_method":
        target = getattr(type(given[0]), target)
    elif node.op == "call_module":
        target = module.get_submodule(target)
    watch = _Watch()
    with watch:
        target(*given, **named)
    return watch.drew


_DispatchMode: Any = TorchDispatchMode


class _Watch(_DispatchMode):  # type: ignore[misc]
    """Notes whether an operator draws random numbers while it is the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.drew = False

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.drew = self.drew or not _draws_nothing(func, args, keywords)
        return func(*args, **keywords)


def _draws_nothing(func: torch._ops.OpOverload, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> bool:
    """Whether its arguments turn off what is random in an operator, as those of attention do in most programs."""
    values = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(keywords)
    defaults = {argument.name: argument.default_value for argument in func._schema.arguments if argument.has_default_value()}
    switches = {"dropout_p", "dropout", "training", "train"} & {argument.name for argument in func._schema.arguments}
    return any(not (defaults | values).get(name, True) for name in switches)

"""Where a program runs: the devices of a session that it is for, and how XLA divides it among them.

Devices of the host's processor are one client of XLA in one process: each is a thread's share of the processor, and collectives of a
program go from one memory of the process to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

COUNTS = {"mhlo.num_replicas": "replicas", "mhlo.num_partitions": "partitions"}
"""Attributes of a module."""


class Placement(NamedTuple):
    """``ProgramPlacement`` of the wire."""

    replicas: int = 1
    partitions: int = 1
    devices: Sequence[int] = (0,)
    """Those of a replica's partitions, one replica after the other."""
    by_partitioner: bool = False
    by_shardy: bool = False
    free_inputs: Sequence[bool] = (False,)
    free_outputs: Sequence[bool] = (False,)

    def check(self, attributes: Any, there_are: int) -> None:
        """Raises NotImplementedError where the session has fewer devices, ValueError where the module is for others."""
        for name, field in COUNTS.items():
            said = attributes[name].value if name in attributes else 1
            if said != getattr(self, field):
                raise ValueError(f"the program is for {said} {field}, and is to be compiled for {getattr(self, field)}")
        if max(self.devices) >= there_are:
            has = "1 device" if there_are == 1 else f"{there_are} devices"
            wanted = f"the program is for device {max(self.devices)}"
            raise NotImplementedError(f"{wanted}, and this session has {has} now: choose another flavor")

    def settle(self, options: Any) -> None:
        """Has XLA's options say so."""
        import numpy as np
        from jaxlib import xla_client

        build = options.executable_build_options
        build.num_replicas, build.num_partitions = self.replicas, self.partitions
        places = np.array(self.devices).reshape(self.replicas, self.partitions)
        build.device_assignment = xla_client.DeviceAssignment.create(places)
        if self.partitions > 1:
            build.use_spmd_partitioning, build.use_shardy_partitioner = self.by_partitioner, self.by_shardy
            build.allow_spmd_sharding_propagation_to_parameters = list(self.free_inputs)
            build.allow_spmd_sharding_propagation_to_output = list(self.free_outputs)


class _Sizes(NamedTuple):
    """What XLA asks of an array's description."""

    shape: tuple[int, ...]
    dtype: Any
    weak_type: bool = False


class Shards:
    """The arrays of several devices that are one to XLA."""

    def __init__(self, devices: Any) -> None:
        from jaxlib import _jax, xla_client

        self._array, self._sharding = _jax.ArrayImpl, _jax.GSPMDSharding(devices, xla_client.HloSharding.replicate())

    def joined(self, arrays: Sequence[Any]) -> Any:
        """An array of a device each, in the devices' order. XLA looks at each by itself, so nothing is said of the whole."""
        (first, *_) = arrays
        return self._array(_Sizes(tuple(first.shape), first.dtype), self._sharding, list(arrays), committed=True, _skip_checks=True)


def shard_sizes(module: bytes) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Sizes of what a compiled module (HloModuleProto) takes and makes on one device."""
    from jaxlib import xla_client

    shape = xla_client.XlaComputation(module).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    return [tuple(one.dimensions()) for one in shape.parameter_shapes()], [tuple(one.dimensions()) for one in results]

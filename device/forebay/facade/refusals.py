"""What of ``torch.cuda`` has no meaning on a virtual device, and what to do instead: one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NoReturn

import torch

from forebay.errors import NotOnVirtualDevice

_PARTS = "the physical device behind it changes from lease to lease, so its multiprocessors cannot be divided; leave it out."
_ADDRESSES = "its memory has no address in this process; exchange tensors through the CPU."
_SENSORS = "the physical device behind it changes from lease to lease; `forebay smi` shows what is held and used."
_POOLS = "the worker allocates; the flavor's memory is the one limit."
_HISTORY = "the worker allocates; torch.cuda.memory_stats() and memory_summary() say what this process holds."
_HANDLES = "a library handle lives on a physical GPU; call PyTorch's own operators."
_KERNELS = "the make of the physical device is open, so only PyTorch's own operators run; write it with them."
_TUNING = "the worker chooses its kernels; leave tuning out."
_PEERS = "devices of one process have no NCCL between them; torch.distributed joins processes (torchrun)."
_BUILD = "it belongs to a GPU of this machine, which is not in use."
_GRAPHS = "a graph has no handle of the CUDA runtime here; CUDAGraph.debug_dump() writes the captured operators."
_PINNED = "pinned host memory is ordinary memory here and is not counted."

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "GreenContext": _PARTS,
        "caching_allocator_alloc": _ADDRESSES,
        "caching_allocator_delete": _ADDRESSES,
        "get_stream_from_external": _ADDRESSES,
        "CUDAPluggableAllocator": _POOLS,
        "change_current_allocator": _POOLS,
        "MemPool": _POOLS,
        "use_mem_pool": _POOLS,
        "memory_snapshot": _HISTORY,
        "host_memory_stats": _PINNED,
        "host_memory_stats_as_nested_dict": _PINNED,
        "reset_accumulated_host_memory_stats": _PINNED,
        "reset_peak_host_memory_stats": _PINNED,
        "current_blas_handle": _HANDLES,
        "current_solver_handle": _HANDLES,
        "export_graph_data": _GRAPHS,
        "temperature": _SENSORS,
        "power_draw": _SENSORS,
        "clock_rate": _SENSORS,
    }
)
"""Public name in ``torch.cuda`` → what to do instead."""

REFUSED_BELOW: Mapping[str, str] = MappingProxyType(
    {
        "ExternalStream": _ADDRESSES,  # refused by its base, forebay.facade.streams.StreamBase
        "_cuda_sleep": "a virtual device does not idle on purpose; use time.sleep().",
        "_cuda_memorySnapshot": _HISTORY,
        "_cuda_record_memory_history": _HISTORY,
        "_cuda_record_memory_history_legacy": _HISTORY,
        "_cuda_allocationTraceback": _HISTORY,
        "_cuda_setMemoryMetadata": _HISTORY,
        "_cuda_getMemoryMetadata": _HISTORY,
        "_cuda_isHistoryEnabled": _HISTORY,
        "_cuda_attach_out_of_memory_observer": _HISTORY,
        "_cuda_cudaHostAllocator": _ADDRESSES,
        "_cuda_cudaCachingAllocator_raw_alloc": _ADDRESSES,
        "_cuda_cudaCachingAllocator_raw_delete": _ADDRESSES,
        "_cuda_getStreamFromExternal": _ADDRESSES,
        "_cuda_getCurrentBlasHandle": _HANDLES,
        "_cuda_getCurrentSolverHandle": _HANDLES,
        "_cuda_hostMemoryStats": _PINNED,
        "_cuda_resetAccumulatedHostMemoryStats": _PINNED,
        "_cuda_resetPeakHostMemoryStats": _PINNED,
        "_cuda_customAllocator": _POOLS,
        "_cuda_changeCurrentAllocator": _POOLS,
        "_cuda_getAllocator": _POOLS,
        "_cuda_beginAllocateCurrentStreamToPool": _POOLS,
        "_cuda_beginAllocateCurrentThreadToPool": _POOLS,
        "_cuda_beginAllocateToPool": _POOLS,
        "_cuda_endAllocateToPool": _POOLS,
        "_cuda_releasePool": _POOLS,
        "_cuda_checkPoolLiveAllocations": _POOLS,
        "_cuda_CUDAAllocator_AllocatorState": _POOLS,
        "_cuda_setCheckpointPoolState": _POOLS,
        "_cuda_getCheckpointState": _POOLS,
        "_cuda_jiterator_compile_and_launch_kernel": _KERNELS,
        "_gds_register_buffer": _ADDRESSES,
        "_gds_deregister_buffer": _ADDRESSES,
        "_gds_register_handle": _ADDRESSES,
        "_gds_deregister_handle": _ADDRESSES,
        "_cuda_tunableop_enable": _TUNING,
        "_cuda_tunableop_tuning_enable": _TUNING,
        "_cuda_record_untuned_enable": _TUNING,
        "_cuda_tunableop_set_filename": _TUNING,
        "_cuda_tunableop_get_filename": _TUNING,
        "_cuda_tunableop_read_file": _TUNING,
        "_cuda_tunableop_get_results": _TUNING,
        "_cuda_tunableop_get_validators": _TUNING,
        "_cuda_tunableop_set_max_tuning_duration": _TUNING,
        "_cuda_tunableop_get_max_tuning_duration": _TUNING,
        "_cuda_tunableop_set_max_tuning_iterations": _TUNING,
        "_cuda_tunableop_get_max_tuning_iterations": _TUNING,
        "_cuda_tunableop_set_rotating_buffer_size": _TUNING,
        "_cuda_tunableop_get_rotating_buffer_size": _TUNING,
        "_cuda_tunableop_set_numerical_check_tolerances": _TUNING,
        "_nccl_unique_id": _PEERS,
        "_nccl_init_rank": _PEERS,
        "_broadcast_out": _PEERS,
        "_scatter_out": _PEERS,
        "_gather_out": _PEERS,
    }
)
"""Function of ``torch._C`` behind submodules of ``torch.cuda`` → what to do instead."""
PUBLIC: Mapping[str, str] = MappingProxyType({"_cuda_sleep": "torch.cuda._sleep"})
"""Function of ``torch._C`` → what programs call it by."""
OF_CUDA_BUILDS = ("_cuda_", "_nccl_")
"""How the functions of ``torch._C`` begin that a build with CUDA has more than others."""


def _refusing_function(name: str, reason: str) -> Callable[..., NoReturn]:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotOnVirtualDevice(name, reason)

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    refuse.__doc__ = f"Not available on a Forebay virtual device: {reason}"
    return refuse


def _refusing_class(name: str, reason: str) -> type:
    """A class, so that annotations and ``isinstance`` still work."""
    short = name.rpartition(".")[2]
    return type(short, (), {"__new__": _refusing_function(name, reason), "__doc__": f"Not available on a Forebay virtual device: {reason}"})


def install(of_this_build: Mapping[str, Any]) -> None:
    """Replaces what is in the tables, and the functions for GPUs in ``torch._C`` that nothing of ours replaced.

    ``of_this_build`` is what ``torch._C`` held at first.
    """
    for name, reason in REFUSED.items():
        original = getattr(torch.cuda, name, None)
        if original is None:
            continue
        make = _refusing_class if isinstance(original, type) else _refusing_function
        refused: Any = make(f"torch.cuda.{name}", reason)
        if hasattr(original, "__wrapped__"):  # torch._dynamo lists what decorated functions were made of
            refused.__wrapped__ = _refusing_function(f"torch.cuda.{name}", reason)
        for module in (torch.cuda, torch.cuda.memory, torch.cuda.graphs):
            if hasattr(module, name):
                setattr(module, name, refused)
    for name, reason in REFUSED_BELOW.items():
        if name.startswith("_"):
            setattr(torch._C, name, _refusing_function(PUBLIC.get(name, f"torch._C.{name}"), reason))
    for name, original in of_this_build.items():
        if name.startswith(OF_CUDA_BUILDS) and not isinstance(original, type) and getattr(torch._C, name) is original:
            setattr(torch._C, name, _refusing_function(f"torch._C.{name}", _BUILD))

"""What ``torch.cuda.get_device_properties()`` returns."""

from __future__ import annotations

from uuid import UUID

from forebay.virtual_device import VirtualDevices, device_name

CAPABILITY = (8, 0)
"""The feature level that programs may count on: bfloat16 and TF32, and none of the later special units."""
CUDA_VERSION = "12.8"
"""What ``torch.version.cuda`` says where it is None: programs ask it for the feature level, too (TF32, bfloat16 without emulation)."""
MULTI_PROCESSOR_COUNT = 64
"""For programs that size their work by it: the scale of one unit of a flavor, not of the device that serves it."""


class DeviceProperties:
    """Sizes and features of a device. Name and memory are the flavor's, asked of the pool when they are first read."""

    major, minor = CAPABILITY
    multi_processor_count = MULTI_PROCESSOR_COUNT
    is_integrated = 0
    is_multi_gpu_board = 0
    warp_size = 32
    max_threads_per_block = 1024
    max_threads_per_multi_processor = 2048
    regs_per_multiprocessor = 65536
    shared_memory_per_block = 48 * 1024
    shared_memory_per_block_optin = 163 * 1024
    shared_memory_per_multiprocessor = 164 * 1024
    L2_cache_size = 40 * 1024 * 1024
    clock_rate = 0
    """Unknown: the devices that serve it differ."""
    memory_clock_rate = 0
    memory_bus_width = 0
    pci_device_id = 0
    pci_domain_id = 0
    gcnArchName = ""

    def __init__(self, devices: VirtualDevices, index: int) -> None:
        self._devices, self._index = devices, index
        self.uuid = UUID(f"f04eba00-0000-5000-8000-{index:012X}")  # as csrc/monitoring tells it

    @property
    def pci_bus_id(self) -> int:
        """Tells the devices apart, as on a bus."""
        return self._index

    @property
    def name(self) -> str:
        """For example ``Forebay small.64gb (virtual)``."""
        return device_name(self._devices.flavor(self._index))

    @property
    def total_memory(self) -> int:
        """Bytes, as the worker enforces them."""
        return self._devices.flavor(self._index).memory_bytes

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // 2**20}MB, multi_processor_count={self.multi_processor_count}, uuid={self.uuid})"
        )

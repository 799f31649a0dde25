"""A worker, as ``python -m forebay_worker``, with another library: one that cannot be opened (``FOREBAY_TEST_LIBRARY=broken``), or of
a device that others have too (``shared``)."""

from __future__ import annotations

import os
import sys
from typing import Any

from forebay_worker import __main__
from forebay_worker.groups import device_library


class Broken(device_library.DeviceLibrary):
    def _gloo(self, group: Any) -> Any:
        raise RuntimeError("no way to another device was found")


class Shared(device_library.DeviceLibrary):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.place = "a host's boot/0:1:0"


if __name__ == "__main__":
    device_library.DeviceLibrary = {"broken": Broken, "shared": Shared}[os.environ["FOREBAY_TEST_LIBRARY"]]
    sys.exit(__main__.main())

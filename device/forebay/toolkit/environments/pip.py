"""``pip`` of an environment: pip itself, and one sentence where it refuses another PyTorch than the virtual device was built for."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import version

REFUSED = b"(constraint) torch"
"""What pip's log has where ``constraints.txt`` of the environment is in its way."""


def main() -> int:
    """Runs pip with this process's arguments; its exit status."""
    with tempfile.NamedTemporaryFile(prefix="forebay-pip-") as log:
        status = subprocess.call([sys.executable, "-m", "pip", *sys.argv[1:]], env={**os.environ, "PIP_LOG": log.name})
        if status and REFUSED in log.read():
            sys.stderr.write(
                f"forebay: Nothing was installed: the virtual device was built for torch {version('torch')}, and what you ask for needs "
                "another one; ask for versions that go with it.\n"
            )
    return status


if __name__ == "__main__":
    sys.exit(main())

"""What stands in for systemd where a host is not booted: a unit's /tmp is its own, wherever the tests' installation lies."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from unit_runner import Runner

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(os.getuid() != 0, reason="mounts need root"),
]


@pytest.fixture
def root() -> Iterator[Path]:
    """Of an installation below /tmp."""
    folder = Path(tempfile.mkdtemp(prefix="forebay-", dir="/tmp"))
    for name in ("etc/systemd/system", "run", "var/lib"):
        (folder / name).mkdir(parents=True)
    (folder / "etc" / "passwd").touch()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("private", [True, False])
def test_what_a_unit_writes_to_its_private_tmp_is_seen_by_nobody_else(root: Path, private: bool) -> None:
    name = f"forebay-of-a-unit-{os.getpid()}"
    script = root / "script.py"
    script.write_text(f"import os, sys; open('/tmp/{name}', 'x').write('x'); open('{root}/var/lib/forebay/done', 'w').write(sys.prefix)")
    lines = ["[Service]", f"ExecStart={sys.executable} {script}", "StateDirectory=forebay", *(["PrivateTmp=yes"] if private else [])]
    (root / "etc" / "systemd" / "system" / "forebay-try.service").write_text("\n".join(lines))
    runner, shared = Runner(root, [], root / "log"), Path("/tmp") / name
    try:
        for _ in range(2 if private else 1):  # the file must not be there yet
            assert runner.run("forebay-try.service") == 0, (root / "log").read_text()
            assert shared.exists() is not private
        assert (root / "var" / "lib" / "forebay" / "done").read_text() == sys.prefix
    finally:
        shared.unlink(missing_ok=True)

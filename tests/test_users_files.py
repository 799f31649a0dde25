"""What the user of this machine keeps at home changes no test."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forebay import devices


def test_devices_that_the_user_keeps_are_not_seen_by_tests_nor_by_what_they_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / ".config" / "forebay" / "devices.json"
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps({"devices": [None, "dev.1gb"]}), encoding="utf-8")
    assert devices.saved({"XDG_CONFIG_HOME": str(tmp_path / ".config")}) == [None, "dev.1gb"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert devices.saved() == [None]
    started = [sys.executable, "-c", "from forebay import devices; print(devices.saved())"]
    assert subprocess.run(started, capture_output=True, text=True, check=True).stdout == "[None]\n"

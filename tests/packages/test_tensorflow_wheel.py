"""The wheel of the plug-in for TensorFlow: what is in it, and that it is enough to see ``GPU:0``."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EPOCH = "1700000000"
PROGRAM = """
import tensorflow as tf
(device,) = tf.config.list_physical_devices("GPU")
print(device.name, (tf.ones((2, 3)) @ tf.ones((3, 2))).numpy().tolist(), tf.ones(2).device[-5:])
"""


def test_without_tensorflow_or_the_other_wheels_it_is_refused(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    with pytest.raises(wheels.WheelsError, match="run: make setup-tensorflow"):
        wheels.add_tensorflow(tmp_path, EPOCH)
    monkeypatch.setattr(wheels, "find_spec", lambda name: name)
    with pytest.raises(wheels.WheelsError, match="has no wheels yet; run: make wheels"):
        wheels.add_tensorflow(tmp_path, EPOCH)
    assert not list(tmp_path.iterdir())


@pytest.mark.full_sweep  # compiles for two minutes
@pytest.mark.timeout(1500)
@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed: make setup-tensorflow (1.4 GB)")
def test_the_wheel_gives_tensorflow_a_device_in_a_new_environment(
    wheels: ModuleType, dist: Path, environment: Callable[..., Any]
) -> None:
    made = wheels.add_tensorflow(dist, EPOCH)
    assert re.fullmatch(r"forebay_tensorflow-[\d.]+-cp311-cp311-manylinux_2_\d+_x86_64\.whl", made.name)
    with zipfile.ZipFile(made) as archive:
        assert [name for name in archive.namelist() if ".so" in name] == ["tensorflow-plugins/forebay.so"]
    assert made.name in (dist / "index.html").read_text(encoding="utf-8")
    new = environment("postgresql", "xla")
    new.install(dist, "forebay-tensorflow", "forebay-worker[xla]", "forebay-pool[postgresql]")
    done = new.run("python", "-c", PROGRAM, FOREBAY_URL="local", HOME=str(new.folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "/physical_device:GPU:0 [[3.0, 3.0], [3.0, 3.0]] GPU:0\n"

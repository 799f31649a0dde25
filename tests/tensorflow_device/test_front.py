"""What the library for TensorFlow asks this package's Python, without TensorFlow."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent.parent / "tf"))  # where the package is not installed

import forebay_tensorflow


def test_there_is_no_device_where_the_processor_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert forebay_tensorflow.front() == (0, 0, "")


def test_a_device_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: F401 activates the virtual device, before it is taken away
    from forebay import process

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(process, "installed", None)
    monkeypatch.setattr(process, "failure", "The pool is away.")
    with pytest.raises(forebay_tensorflow.NoVirtualDevice, match=r"in this process: The pool is away\. Set CUDA_VISIBLE_DEVICES=-1"):
        forebay_tensorflow.front()


@pytest.mark.skipif("tensorflow" not in packages_distributions(), reason="TensorFlow is not installed: make setup-tensorflow (1.4 GB)")
def test_tensorflow_is_of_the_release_that_is_served() -> None:
    assert version("tensorflow_cpu").startswith("2.21.")

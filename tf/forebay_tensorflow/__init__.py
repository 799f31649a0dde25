"""TensorFlow on the virtual devices: ``/GPU:0`` is ``cuda:0`` of the same session that PyTorch uses.

TensorFlow loads this package's library from the folder ``tensorflow-plugins`` beside it, and the library calls :func:`front`. Programs are
compiled and carried out by the plug-in of ``forebay_jax``, a library behind the PJRT C API.
"""

from __future__ import annotations

import os
import sys

INSTEAD = "Set CUDA_VISIBLE_DEVICES=-1 to compute on this machine's processor instead."
NOT_SET, OFF = "FOREBAY_URL is not set.", "It is off."


class NoVirtualDevice(RuntimeError):
    """There is no virtual device in this process, and TensorFlow was not told to compute elsewhere."""

    def __init__(self, why: str) -> None:
        super().__init__(f"There is no virtual device for TensorFlow in this process: {why} {INSTEAD}")


def front() -> tuple[int, int, str]:
    """How many devices there are, where their functions are, and the plug-in's library. Raises NoVirtualDevice, ForebayError."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "").strip() == "-1":
        return 0, 0, ""
    import torch  # activates the virtual device
    from forebay import process

    if process.installed is None:
        raise NoVirtualDevice(process.failure or (OFF if os.environ.get("FOREBAY_URL", "").strip() else NOT_SET))
    import forebay_jax

    refuse_cudnn()
    keep_operators_apart()
    return torch.cuda.device_count(), forebay_jax.device_table(), str(forebay_jax.LIBRARY)


def refuse_cudnn() -> None:
    """Has the layers of cuDNN refused where a program is written. Keras takes them for every device called GPU, and then builds its own."""
    from tensorflow.python.framework import errors
    from tensorflow.python.ops import gen_cudnn_rnn_ops

    def refused(*_: object, **__: object) -> None:
        raise errors.NotFoundError(None, None, "The layers of cuDNN are not served on the virtual device.")

    for module in (gen_cudnn_rnn_ops, sys.modules.get("tensorflow._api.v2.raw_ops")):
        if module is not None:
            vars(module).update(dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), refused))


def keep_operators_apart() -> None:
    """TensorFlow would join convolutions with what follows them, for which it has kernels on CUDA's devices and on processors alone."""
    from tensorflow.python.eager import context

    context.context().set_optimizer_experimental_options({"remapping": False})

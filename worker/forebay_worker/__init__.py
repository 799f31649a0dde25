"""Carries out the command streams of virtual devices on real ones."""

from forebay_wire import torch_builds

torch_builds.add_to(__path__)


class WorkerError(Exception):
    """Base of this package's errors: what keeps a worker from working. The message, for the operator, says what happened and what to do."""


class DeviceUnknown(WorkerError):
    """The device on the command line is not one that this interpreter's PyTorch sees."""


class LinkLost(WorkerError):
    """The pool's link ended or said something that is not the worker link."""


class LinkRefused(LinkLost):
    """The pool will not have this worker, or asks for what no worker does: there is no use in coming back."""

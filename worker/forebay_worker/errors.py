"""What keeps a worker from working, each with a sentence for the operator."""

from __future__ import annotations


class WorkerError(Exception):
    """Base of this package's errors; the message says what happened and what to do."""


class DeviceUnknown(WorkerError):
    """The device on the command line is not one that this interpreter's PyTorch sees."""


class LinkLost(WorkerError):
    """The pool's link ended or said something that is not the worker link."""


class LinkRefused(LinkLost):
    """The pool will not have this worker, or asks for what no worker does: there is no use in coming back."""

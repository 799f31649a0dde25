"""The environment of a server that has no GPU, wherever it runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "NVIDIA_VISIBLE_DEVICES": "void",
    "ROCR_VISIBLE_DEVICES": "-1",
}
"""Hides every GPU from CUDA and ROCm; ``void`` keeps NVIDIA's container runtime from attaching one."""

SYSTEM_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def virtual_device(url: str, token: str, billing_url: str = "") -> dict[str, str]:
    """What the ``forebay`` package in the notebook reads; without an address of billing it looks for it beside the pool."""
    billing = {"FOREBAY_BOOKS_URL": billing_url} if billing_url else {}
    return {"FOREBAY_URL": url, "FOREBAY_TOKEN": token, **billing, **NO_GPU}


def search_path(first: Sequence[str]) -> str:
    """PATH of a server on the hub's machine: these folders, then the system's, and nothing that the hub's own PATH names."""
    return ":".join((*first, *SYSTEM_PATH))

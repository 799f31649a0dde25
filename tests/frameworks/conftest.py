"""Frameworks on top of PyTorch, run unmodified in a process that has the virtual device, served by an embedded pool and a real worker.

``FOREBAY_URL=local pytest tests/frameworks`` (``make test`` does it). Nothing is fetched: models are made from configurations,
text is Python's own documentation, images are scikit-learn's digits, and the one pretrained model comes in a package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pydoc_data.topics import topics
from typing import Any

import pytest

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")

collect_ignore_glob = [] if os.environ.get("FOREBAY_URL") else ["test_*.py"]

VOCABULARY = 64
"""Characters of the text that models are trained on, folded into so many numbers."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Advice that the frameworks give their users, and what they use that is old, is none of ours."""
    for item in items:
        if "frameworks" in item.path.parts:
            for category in ("UserWarning", "DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{category}"))


@pytest.fixture(autouse=True)
def no_failure_left_behind() -> Iterator[None]:
    """Each test starts with a seed of its own and ends with its work done."""
    import torch

    torch.manual_seed(20)
    yield
    torch.cuda.synchronize()


@pytest.fixture(scope="session")
def text() -> Any:
    """16 lines of 24 characters of Python's documentation, as numbers from 3 on."""
    import torch

    characters = [3 + ord(character) % (VOCABULARY - 3) for character in topics["lambda"] + topics["for"]][: 16 * 24]
    return torch.tensor(characters).reshape(16, 24)


@pytest.fixture(scope="session")
def gpt() -> Callable[..., Any]:
    """Makes the same small GPT-2 again and again; ``dropout`` is its one option."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    def make(dropout: float = 0.0) -> GPT2LMHeadModel:
        torch.manual_seed(3)
        shape = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
        dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
        return GPT2LMHeadModel(GPT2Config(**shape, **dropouts, bos_token_id=1, eos_token_id=2))

    return make

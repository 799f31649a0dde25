"""Models of ``transformers``, made from configurations, train and generate on the virtual device as on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.testing import assert_close

VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE = {key: SIZES[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")} | {
    "image_size": 16,
    "patch_size": 4,
}
Made = tuple[torch.nn.Module, dict[str, Any]]


def tokens(length: int = 12) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, length))


def causal(config: Any) -> Made:
    x = tokens()
    return transformers.AutoModelForCausalLM.from_config(config), {"input_ids": x, "labels": x}


def gpt2() -> Made:
    sizes = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return causal(transformers.GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=1, eos_token_id=2))


def llama() -> Made:
    return causal(transformers.LlamaConfig(**SIZES, num_key_value_heads=2, bos_token_id=1, eos_token_id=2))


def mistral() -> Made:
    return causal(transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=4, bos_token_id=1, eos_token_id=2))


def mixtral() -> Made:
    return causal(transformers.MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=4, bos_token_id=1, eos_token_id=2))


def mamba() -> Made:
    return causal(transformers.MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4, eos_token_id=2))


def bert() -> Made:
    x, mask = tokens(), torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **NO_DROPOUT)), {
        "input_ids": x,
        "attention_mask": mask,
        "labels": x,
    }


def t5() -> Made:
    sizes = {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    config = transformers.T5Config(**sizes, dropout_rate=0, decoder_start_token_id=0)
    return transformers.T5ForConditionalGeneration(config), {"input_ids": tokens(), "labels": tokens(7)}


def vit() -> Made:
    config = transformers.ViTConfig(**IMAGE, **NO_DROPOUT, num_labels=3)
    return transformers.ViTForImageClassification(config), {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([0, 2])}


def clip() -> Made:
    text = {**SIZES, "eos_token_id": 2, "bos_token_id": 1}
    model = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=IMAGE, projection_dim=16))
    return model, {"input_ids": tokens(), "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": True}


def whisper() -> Made:
    halves = {f"{half}_{key}": value for half in ("encoder", "decoder") for key, value in (("layers", 2), ("attention_heads", 4))}
    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 20}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
    config = transformers.WhisperConfig(vocab_size=VOCABULARY, **halves, **sizes, **special, max_target_positions=32, dropout=0)
    config.suppress_tokens = config.begin_suppress_tokens = None
    return transformers.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 40), "labels": tokens(7)}


MODELS: list[Callable[[], Made]] = [gpt2, llama, mistral, mixtral, mamba, bert, t5, vit, clip, whisper]
WRITERS: list[Callable[[], Made]] = [gpt2, llama, mistral, mamba, t5, whisper]


def there(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to("cuda") if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}


def losses(model: Any, inputs: dict[str, Any]) -> list[float]:
    """Of three steps with AdamW and clipped gradients."""
    model.train()
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("make", MODELS)
def test_a_model_computes_and_learns_as_on_the_cpu(make: Callable[[], Made]) -> None:
    host, inputs = make()
    host.eval()
    device = copy.deepcopy(host).to("cuda")
    with torch.no_grad():
        assert_close(device(**there(inputs)).loss.cpu(), host(**inputs).loss, rtol=1e-4, atol=1e-4)
    assert_close(losses(device, there(inputs)), losses(host, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("make", [gpt2, bert])
def test_a_model_loaded_in_half_precision_learns(make: Callable[[], Made], dtype: torch.dtype) -> None:
    host, inputs = make()
    with torch.no_grad():
        expected = host(**inputs).loss
    device = copy.deepcopy(host).to("cuda", dtype)
    inputs = {name: value.to(dtype) if value.is_floating_point() else value for name, value in there(inputs).items()}
    loss = device(**inputs).loss
    loss.backward()
    assert_close(loss.detach().cpu().float(), expected, rtol=2e-2, atol=2e-2)
    assert all(p.grad is None or (p.grad.dtype == dtype and p.grad.isfinite().all()) for p in device.parameters())


WAYS: dict[str, dict[str, Any]] = {
    "cached": {},
    "uncached": {"use_cache": False},
    "beams": {"num_beams": 3},
    "static cache": {"cache_implementation": "static"},
    "penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2},
}
STATEFUL_WAYS = ("cached", "penalties")
"""Those of a model that keeps a state instead of a cache of keys and values."""


@pytest.mark.parametrize(("make", "way"), [(make, way) for make in WRITERS for way in (STATEFUL_WAYS if make is mamba else WAYS)])
def test_a_model_writes_what_it_writes_on_the_cpu(make: Callable[[], Made], way: str) -> None:
    host, inputs = make()
    host.eval()
    device: Any = copy.deepcopy(host).to("cuda")
    start = inputs["input_features" if make is whisper else "input_ids"]
    options = {"max_new_tokens": 8, "pad_token_id": 0, **WAYS[way]}
    written = device.generate(start.to("cuda"), **options)
    assert written.is_cuda
    assert written.tolist() == host.generate(start, **options).tolist()  # type: ignore[operator]


@pytest.mark.parametrize("make", WRITERS)
def test_sampled_text_depends_on_the_seed_alone(make: Callable[[], Made]) -> None:
    host, inputs = make()
    device: Any = host.eval().to("cuda")
    start = inputs["input_features" if make is whisper else "input_ids"].to("cuda")

    def write(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        sampled = device.generate(start, do_sample=True, top_k=20, top_p=0.95, temperature=1.3, max_new_tokens=8, pad_token_id=0)
        return list(sampled.tolist())

    assert write(5) == write(5) != write(6)


def test_a_cache_of_keys_and_values_may_be_offloaded_to_the_host() -> None:
    model, inputs = llama()
    device: Any = model.eval().to("cuda")
    start = inputs["input_ids"].to("cuda")
    plain = device.generate(start, max_new_tokens=8, pad_token_id=0)
    assert torch.equal(device.generate(start, max_new_tokens=8, pad_token_id=0, cache_implementation="offloaded"), plain)


def test_a_model_is_loaded_onto_a_device_of_less_memory_than_transformers_leaves_free(tmp_path: Path) -> None:
    """It takes all but 1.2 GiB of the device's memory beforehand, which a small flavor does not have."""
    model, inputs = gpt2()
    assert torch.cuda.get_device_properties(0).total_memory < 1.2 * 2**30
    model.save_pretrained(tmp_path)  # type: ignore[operator]
    loaded: Any = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, device_map="cuda").eval()
    assert loaded.device.type == "cuda"
    assert_close(loaded(inputs["input_ids"].to("cuda")).logits.cpu(), model.eval()(inputs["input_ids"]).logits, rtol=1e-4, atol=1e-4)

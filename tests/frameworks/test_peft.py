"""``peft`` adapts a model on the virtual device, and the adapter fits on either side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from torch.testing import assert_close

CONFIGS: dict[str, Callable[[], Any]] = {
    "lora": lambda: LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True),
    "dora": lambda: LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, use_dora=True),
    "ia3": lambda: IA3Config(target_modules=["c_attn"], feedforward_modules=[], fan_in_fan_out=True),
    "prefix": lambda: PrefixTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
    "prompt": lambda: PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM"),
}


def adapt(model: Any, config: Any, lines: torch.Tensor) -> tuple[Any, list[float]]:
    """The adapted model, and the losses of three steps."""
    torch.manual_seed(0)
    adapted = get_peft_model(model, config).to(lines.device)
    trained = [p for p in adapted.parameters() if p.requires_grad]
    optimizer, losses = torch.optim.AdamW(trained, lr=1e-2), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = adapted(input_ids=lines, labels=lines).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return adapted.eval(), losses


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_adapter_learns_as_on_the_cpu(gpt: Callable[..., Any], text: torch.Tensor, kind: str) -> None:
    _, losses = adapt(gpt(), CONFIGS[kind](), text[:4].cuda())
    assert_close(losses, adapt(gpt(), CONFIGS[kind](), text[:4])[1], rtol=1e-3, atol=1e-3)


def test_an_adapter_is_merged_taken_out_and_unloaded(gpt: Callable[..., Any], text: torch.Tensor) -> None:
    lines = text[:2].cuda()
    adapted, _ = adapt(gpt(), CONFIGS["lora"](), lines)
    logits = adapted(input_ids=lines).logits
    with adapted.disable_adapter():
        assert_close(adapted(input_ids=lines).logits, gpt().cuda().eval()(input_ids=lines).logits)
    adapted.merge_adapter()
    assert_close(adapted(input_ids=lines).logits, logits, rtol=1e-3, atol=1e-4)
    adapted.unmerge_adapter()
    assert_close(adapted.merge_and_unload()(input_ids=lines).logits, logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("made_on", "used_on"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_saved_adapter_fits_on_the_other_side(
    gpt: Callable[..., Any], text: torch.Tensor, tmp_path: Path, made_on: str, used_on: str
) -> None:
    adapted, _ = adapt(gpt(), CONFIGS["lora"](), text[:2].to(made_on))
    adapted.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(gpt().to(used_on), tmp_path).eval()
    lines = text[:2]
    assert_close(loaded(input_ids=lines.to(used_on)).logits.cpu(), adapted(input_ids=lines.to(made_on)).logits.cpu(), rtol=1e-3, atol=1e-4)

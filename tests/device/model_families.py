"""Training scripts of the families that people train, each as for one device.

``model_families.py STEPS ADDRESS TICKET FAMILY…`` prints the losses of each family's steps as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from operator_sweep import attach

if __name__ == "__main__":
    attach(sys.argv[2], sys.argv[3])

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS = 8
WORDS = 67
LENGTH = 12
IMAGE = (3, 16, 16)
Step = Callable[[], Tensor]


def numbers(*sizes: int) -> Tensor:
    return torch.randn(*sizes).to("cuda")


def words(*sizes: int) -> Tensor:
    return torch.randint(3, WORDS, sizes).to("cuda")


def steps_of(model: nn.Module, loss_of: Callable[[], Tensor], rate: float = 1e-3) -> Step:
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss

    return step


def perceptron() -> Step:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)).to("cuda")
    return steps_of(model, lambda: functional.mse_loss(model(numbers(ROWS, 32)), numbers(ROWS, 4)))


def convolutions() -> Step:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    model = nn.Sequential(block(3, 16), nn.MaxPool2d(2), block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).to("cuda")
    return steps_of(model, lambda: functional.cross_entropy(model(numbers(ROWS, *IMAGE)), torch.randint(0, 10, (ROWS,)).to("cuda")))


def gpt2() -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).to("cuda")

    def loss() -> Tensor:
        text = words(ROWS, LENGTH)
        found: Tensor = model(input_ids=text, labels=text).loss
        return found

    return steps_of(model.train(), loss)


def bert() -> Step:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(**sizes, max_position_embeddings=LENGTH, num_labels=3)).to("cuda")

    def loss() -> Tensor:
        mask = (torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (ROWS, 1))).long().to("cuda")
        found: Tensor = model(input_ids=words(ROWS, LENGTH), attention_mask=mask, labels=torch.randint(0, 3, (ROWS,)).to("cuda")).loss
        return found

    return steps_of(model.train(), loss)


def t5() -> Step:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config).to("cuda")

    def loss() -> Tensor:
        found: Tensor = model(input_ids=words(ROWS, LENGTH), labels=words(ROWS, LENGTH // 2)).loss
        return found

    return steps_of(model.train(), loss)


def vit() -> Step:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=5, hidden_dropout_prob=0.1)).to("cuda")

    def loss() -> Tensor:
        found: Tensor = model(pixel_values=numbers(ROWS, *IMAGE), labels=torch.randint(0, 5, (ROWS,)).to("cuda")).loss
        return found

    return steps_of(model.train(), loss)


def llama_with_lora() -> Step:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, bos_token_id=1, eos_token_id=2))
    model = get_peft_model(llama, LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])).to("cuda")

    def loss() -> Tensor:
        text = words(ROWS, LENGTH)
        found: Tensor = model(input_ids=text, labels=text).loss
        return found

    return steps_of(model.train(), loss, 1e-2)


class Unet(nn.Module):
    """Noise from a noised image and its time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 16))
        self.enter, self.down = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.inner, self.norm = nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32)
        self.up, self.leave = nn.ConvTranspose2d(32, 16, 2, stride=2), nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        entered = self.enter(x) + self.time(time)[:, :, None, None]
        inner = functional.silu(self.norm(self.inner(functional.silu(self.down(entered)))))
        found: Tensor = self.leave(torch.cat((self.up(inner), entered), 1))
        return found


def unet() -> Step:
    model = Unet().to("cuda")

    def loss() -> Tensor:
        image, time = numbers(ROWS, *IMAGE), torch.rand(ROWS, 1).to("cuda")
        noise = torch.randn_like(image)
        kept = time[:, :, None, None]
        return functional.mse_loss(model(kept * image + (1 - kept) * noise, time), noise)

    return steps_of(model, loss)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 16), nn.LSTM(16, 32, 2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(32, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(self.words(text))[0])
        return found


def lstm() -> Step:
    model = Lstm().to("cuda")

    def loss() -> Tensor:
        text = words(ROWS, LENGTH + 1)
        return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return steps_of(model, loss, 1e-2)


def gan() -> Step:
    makes = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16)).to("cuda")
    judges = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1)).to("cuda")
    making, judging = torch.optim.Adam(makes.parameters(), 1e-3), torch.optim.Adam(judges.parameters(), 1e-3)
    entropy = nn.BCEWithLogitsLoss()

    def step() -> Tensor:
        real, made = numbers(ROWS, 16), makes(numbers(ROWS, 8))
        yes, no = torch.ones(ROWS, 1, device="cuda"), torch.zeros(ROWS, 1, device="cuda")
        judging.zero_grad()
        right = entropy(judges(real), yes) + entropy(judges(made.detach()), no)
        right.backward()
        judging.step()
        making.zero_grad()
        wrong = entropy(judges(made), yes)
        wrong.backward()
        making.step()
        return right.detach() + wrong.detach()

    return step


def graph_network() -> Step:
    """All nodes in each step: nothing is a batch."""
    nodes, edges = numbers(24, 16), torch.randint(0, 24, (2, 96)).to("cuda")
    kinds = torch.randint(0, 3, (24,)).to("cuda")
    first, second = nn.Linear(16, 32).to("cuda"), nn.Linear(32, 3).to("cuda")

    def gathered(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])

    def loss() -> Tensor:
        hidden = torch.relu(first(gathered(nodes)))
        return functional.cross_entropy(second(gathered(hidden)), kinds)

    return steps_of(nn.ModuleList((first, second)), loss)


FAMILIES: dict[str, Callable[[], Step]] = {
    "perceptron": perceptron,
    "convolutions": convolutions,
    "gpt2": gpt2,
    "bert": bert,
    "t5": t5,
    "vit": vit,
    "llama with lora": llama_with_lora,
    "u-net": unet,
    "lstm": lstm,
    "gan": gan,
    "graph network": graph_network,
}


def losses(family: str, steps: int) -> Iterator[float]:
    torch.manual_seed(0)
    step = FAMILIES[family]()
    for _ in range(steps):
        yield step().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps({family: list(losses(family, int(sys.argv[1]))) for family in sys.argv[4:]}))

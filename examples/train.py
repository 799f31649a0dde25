"""A small network learns English spelling on ``cuda:0``, from the help texts that come with Python.

Stock PyTorch, nothing of Forebay's imported, nothing but PyTorch needed.
"""

from pydoc_data.topics import topics

import torch
from torch import nn

DEVICE = "cuda:0"
CONTEXT = 12

text = "\n".join(topics[name] for name in sorted(topics))
alphabet = sorted(set(text))
number = {character: index for index, character in enumerate(alphabet)}
letters = torch.tensor([number[character] for character in text], device=DEVICE)

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(len(alphabet), 24),
    nn.Flatten(),
    nn.Linear(24 * CONTEXT, 256),
    nn.ReLU(),
    nn.Linear(256, len(alphabet)),
).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
window = torch.arange(CONTEXT + 1, device=DEVICE)
for step in range(1, 201):
    starts = torch.randint(len(letters) - CONTEXT, (256, 1), device=DEVICE)
    sample = letters[starts + window]
    loss = nn.functional.cross_entropy(model(sample[:, :-1]), sample[:, -1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 25 == 0:
        print(f"step {step:3}  loss {loss.item():.3f}")

written = letters[:CONTEXT]
with torch.no_grad():
    for _ in range(100):
        chances = model(written[None, -CONTEXT:]).softmax(-1)[0]
        written = torch.cat([written, torch.multinomial(chances, 1)])
print("".join(alphabet[index] for index in written.tolist()))
print("trained on", torch.cuda.get_device_name())

"""Trains a small network on scikit-learn's digits on ``cuda:0``: stock PyTorch, nothing of Forebay's imported."""

import torch
from sklearn.datasets import load_digits
from torch import nn

device = "cuda:0"
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32, device=device) / 16
labels = torch.tensor(labels, device=device)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(1, 11):
    for batch in torch.randperm(len(images), device=device).split(128):
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (model(images).argmax(1) == labels).float().mean()
    print(f"epoch {epoch:2}  loss {loss.item():.4f}  accuracy {accuracy.item():.1%}")
print("trained on", torch.cuda.get_device_name())

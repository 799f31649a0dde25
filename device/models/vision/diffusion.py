"""A diffusion model learns to take noise away from pictures of shapes, and so to make some of nothing but noise.

Ho et al., Denoising Diffusion Probabilistic Models, 2020.
"""

from __future__ import annotations

import math

import torch
from shapes import draw
from torch import Tensor, nn
from torch.nn import functional
from training import Training

IMAGES, SIZE = 512, 16
WIDTH, TIMES = 32, 100
SHADES = " .:-=+*#%@"


class Block(nn.Module):
    """A residual block that is told the time."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.first_norm, self.second_norm = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.time = nn.Linear(4 * WIDTH, outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(functional.silu(self.first_norm(x))) + self.time(time)[:, :, None, None]
        return self.shortcut(x) + self.second(functional.silu(self.second_norm(y)))


class Denoiser(nn.Module):
    """Tells the noise in a picture, (batch, 1, size, size): a U-Net of two levels."""

    def __init__(self) -> None:
        super().__init__()
        waves = torch.exp(-math.log(10_000) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        self.register_buffer("waves", waves, persistent=False)
        self.time = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, 4 * WIDTH), nn.SiLU())
        self.enter, self.leave = nn.Conv2d(1, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.outer, self.inner = Block(WIDTH, WIDTH), Block(WIDTH, 2 * WIDTH)
        self.middle, self.merge = Block(2 * WIDTH, 2 * WIDTH), Block(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * self.waves
        told = self.time(torch.cat((angles.sin(), angles.cos()), 1))
        outer = self.outer(self.enter(x), told)
        inner = self.middle(self.inner(functional.avg_pool2d(outer, 2), told), told)
        large = functional.interpolate(inner, scale_factor=2)
        return self.leave(self.merge(torch.cat((outer, large), 1), told))


BETAS = torch.linspace(1e-3, 0.1, TIMES)
"""How much noise each time adds."""
KEPT = (1 - BETAS).cumprod(0)
"""How much of a picture is left at each time, squared."""


@torch.no_grad()
def sample(model: Denoiser, device: torch.device, chance: torch.Generator) -> Tensor:
    """A picture, (size, size), made from noise."""
    x = torch.randn(1, 1, SIZE, SIZE, generator=chance).to(device)
    for time in reversed(range(TIMES)):
        noise = model(x, torch.full((1,), float(time), device=device))
        x = (x - BETAS[time].item() / math.sqrt(1 - KEPT[time].item()) * noise) / math.sqrt(1 - BETAS[time].item())
        if time > 0:
            x = x + math.sqrt(BETAS[time].item()) * torch.randn(x.shape, generator=chance).to(device)
    return x[0, 0].cpu()


def main() -> None:
    training = Training(__doc__, steps=300, batch=16)
    pictures = (draw(IMAGES, SIZE, training.chance).masks > 0).float()[:, None] * 2 - 1
    model = Denoiser().to(training.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for (clean,) in training.batches(pictures):
        time = torch.randint(TIMES, (training.batch,), generator=training.chance)
        noise = torch.randn(clean.shape, generator=training.chance).to(training.device)
        kept = KEPT[time].to(training.device)[:, None, None, None]
        noised = kept.sqrt() * clean + (1 - kept).sqrt() * noise
        loss = functional.mse_loss(model(noised, time.to(training.device).float()), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        training.report(loss)
    training.finish()
    if not training.quiet:
        shades = ((sample(model, training.device, training.chance).clamp(-1, 1) + 1) / 2 * (len(SHADES) - 1)).round().long()
        print("\n".join("".join(2 * SHADES[shade] for shade in line) for line in shades.tolist()))


if __name__ == "__main__":
    main()

"""A language model of characters in PyTorch: AdamW in two groups, a schedule, clipping."""

import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

STEPS, WARM_UP, PEAK = 200, 20, 3e-3
LENGTH, WIDTH, HEADS, LAYERS = 48, 48, 4, 2
TEXT = Path(__file__).parents[1].joinpath("data", "prose.txt").read_text(encoding="utf-8")
ALPHABET = sorted({*TEXT})
IDS = np.array([ALPHABET.index(character) for character in TEXT])


class Block(nn.Module):
    """Attention to what came before, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next features."""
        later = torch.triu(torch.ones(LENGTH, LENGTH, dtype=torch.bool), 1)
        y = self.norm1(x)
        x = x + self.attention(y, y, y, attn_mask=later, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """A transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(ALPHABET), WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(ALPHABET), bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the next characters."""
        x = self.token(ids) + self.position.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def factor(step: int) -> float:
    """The part of the peak that the learning rate is."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def batch(step: int) -> torch.Tensor:
    """Pieces of the text, one character longer than the model's input."""
    starts = np.random.default_rng(step).integers(len(IDS) - LENGTH, size=16)
    return torch.from_numpy(np.stack([IDS[at : at + LENGTH + 1] for at in starts]))


def main() -> None:
    """Trains, and prints the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", default="", help="a checkpoint to go on from")
    parser.add_argument("--stop", type=int, default=STEPS)
    parser.add_argument("--save", default="")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Model()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK, weight_decay=0.05)
    start = 0
    if options.start:
        saved = torch.load(options.start, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = int(next(iter(saved["optimizer"]["state"].values()))["step"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor, last_epoch=start - 1)

    for step in range(start, options.stop):
        ids = batch(step)
        logits = model(ids[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        print(json.dumps({"step": step, "loss": loss.item()}))
    if options.save:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, options.save)


if __name__ == "__main__":
    main()

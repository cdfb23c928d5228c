"""A classifier of digits in PyTorch: AdamW in two groups, a schedule, clipping."""

import argparse
import json
import math

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

STEPS, WARM_UP, PEAK = 200, 20, 3e-3
IMAGES, LABELS = load_digits(return_X_y=True)


class Net(nn.Module):
    """Two convolutions and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        x = nn.functional.max_pool2d(torch.relu(self.bn2(self.conv2(x))), 2)
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def factor(step: int) -> float:
    """The part of the peak that the learning rate is."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.5 + 0.5 * math.cos(math.pi * (step - WARM_UP) / (STEPS - WARM_UP))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels of a step."""
    rows = np.random.default_rng(step).integers(len(IMAGES), size=64)
    images = IMAGES[rows].reshape(-1, 1, 8, 8).astype(np.float32) / 16
    return torch.from_numpy(images), torch.from_numpy(LABELS[rows])


def main() -> None:
    """Trains, and prints the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--start", default="", help="a checkpoint to go on from")
    parser.add_argument("--stop", type=int, default=STEPS)
    parser.add_argument("--save", default="")
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Net()
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
        images, labels = batch(step)
        loss = nn.functional.cross_entropy(model(images), labels)
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

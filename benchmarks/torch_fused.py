"""PyTorch's optimizers on the same trees, fused where it has a fused kernel; an optional extra."""

import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from optax_bridge.correspondence import Entry

# Entry -> the class, and its settings. What has no fused kernel on CPUs runs by `foreach`.
_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {"fused": True}),
    "adagrad": ("Adagrad", {"fused": True}),
    "sgd": ("SGD", {"fused": True}),
    "momentum": ("SGD", {"fused": True, "momentum": 0.9}),
    "rmsprop": ("RMSprop", {"foreach": True}),
    "adadelta": ("Adadelta", {"foreach": True}),
}


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def torch_stepper(
    entry: Entry, params: Any, device: str = "cpu", decay: float = 0.0
) -> Callable[[], float] | None:
    """A step of PyTorch's optimizer of that kind; None if it has none, or is not installed.

    Args:
      entry: which optimizer.
      params: their shapes and dtypes are taken.
      device: as PyTorch calls it.
      decay: of Adam, decoupled.
    """
    if not has_torch() or entry.name not in _CLASSES:
        return None
    # Threads that wait by spinning take ten times as long where anything else wants the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    import torch  # slow to import, and needed nowhere else

    name, settings = _CLASSES[entry.name]
    if decay:
        name, settings = "AdamW", {**settings, "weight_decay": decay}
    rng = np.random.default_rng(1)

    def tensor(leaf: Any) -> Any:
        made = torch.from_numpy(rng.standard_normal(leaf.shape).astype(np.float32))
        return made.to(device, getattr(torch, leaf.dtype.name))

    leaves = [torch.nn.Parameter(tensor(leaf)) for leaf in jax.tree.leaves(params)]
    for leaf in leaves:
        leaf.grad = tensor(leaf.detach().cpu().float().numpy()).to(leaf.dtype)
    optimizer = getattr(torch.optim, name)(leaves, lr=1e-3, **settings)

    def step() -> float:
        start = time.perf_counter()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return step

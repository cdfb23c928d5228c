"""PyTorch's optimizers on the same trees, by a fused kernel where one works; an optional extra."""

import functools
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from optax_bridge.correspondence import Entry

# Entry -> the class, and its settings.
_CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "adam": ("Adam", {}),
    "adagrad": ("Adagrad", {}),
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9}),
    "rmsprop": ("RMSprop", {}),
    "adadelta": ("Adadelta", {}),
}
_FUSED = ("adam", "adagrad", "sgd", "momentum")
# By how much a fused kernel's step may differ: by a unit of bfloat16's last place.
_TOLERANCE = 2.0**-7


def has_torch() -> bool:
    """Whether torch can be imported."""
    return importlib.util.find_spec("torch") is not None


def how(entry: Entry, dtype: str) -> str:
    """By which of PyTorch's ways its side runs on CPUs, in words; empty for a fused kernel."""
    if entry.name not in _FUSED:
        return "PyTorch by foreach, as it has no fused kernel"
    name, settings = _CLASSES[entry.name]
    if not _fused_works(name, tuple(settings.items()), dtype, "cpu"):
        return "PyTorch by foreach, as its fused kernel leaves such parameters as they are"
    return ""


@functools.cache
def _fused_works(name: str, settings: tuple[tuple[str, Any], ...], dtype: str, device: str) -> bool:
    """Whether a fused kernel takes the step that PyTorch takes without it.

    PyTorch 2.13's SGD on CPUs does not write bfloat16 parameters, but for the last few elements.
    """
    import torch  # slow to import, and needed nowhere else

    ends = []
    for fused in (True, False):
        leaf = torch.nn.Parameter(torch.ones(64, dtype=getattr(torch, dtype), device=device))
        leaf.grad = torch.ones_like(leaf)
        getattr(torch.optim, name)([leaf], lr=0.5, fused=fused, **dict(settings)).step()
        ends.append(leaf.detach().float())
    return torch.allclose(*ends, rtol=_TOLERANCE)


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
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(params)}
    is_fused = entry.name in _FUSED and all(
        _fused_works(name, tuple(settings.items()), dtype, device) for dtype in dtypes
    )
    settings = {**settings, "fused" if is_fused else "foreach": True}
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

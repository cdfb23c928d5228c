"""Optimizers of PyTorch as sides; PyTorch is imported only when such a side is made."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.sides.side import EquivalenceError, Side
from optax_bridge.cli.errors import error_text
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates


def arguments_text(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Arguments as in a call."""
    named = (f"{name}={value!r}" for name, value in kwargs.items())
    return ", ".join([*map(repr, args), *named])


def torch_side(optimizer: Callable[..., object], /, *args: object, **kwargs: object) -> Side:
    """Returns a side that steps an optimizer of PyTorch, on the CPU.

        check_equivalence(torch_side(torch.optim.AdamW, lr=1e-3), optax.adamw(1e-3), params)

    Args:
      optimizer: a class of `torch.optim`, or a function that makes such an optimizer from a list of
        tensors.
      *args: its arguments after the tensors.
      **kwargs: its keyword arguments.

    Returns:
      The side. Parameters are any pytree of float32, float64, float16 or bfloat16 arrays; each
      leaf is one tensor. The state is PyTorch's own, by tensor and name, and empty before the
      first step.

    Raises:
      EquivalenceError: PyTorch is not installed, or `optimizer` does not make an optimizer.
    """
    torch = import_torch("torch_side")
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    if not callable(optimizer):
        raise EquivalenceError(
            f"torch_side: expected a class of torch.optim, found {name}; write "
            "torch_side(torch.optim.AdamW, lr=1e-3)"
        )

    def make(tensors: list[Any]) -> Any:
        try:
            result = optimizer(tensors, *args, **kwargs)
        except Exception as error:
            raise EquivalenceError(f"torch_side: {name} {error_text(error)}") from None
        if not isinstance(result, torch.optim.Optimizer):
            raise EquivalenceError(
                f"torch_side: {name} made a {type(result).__name__}; expected a "
                "torch.optim.Optimizer"
            )
        return result

    make([torch.zeros(1, 1)])  # wrong arguments are an error here, not in the middle of a run

    def init(params: Params) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        tensors = [as_tensor(torch, leaf) for leaf in leaves]
        return make(tensors), tensors, treedef

    def step(state: PyTree, grads: Updates) -> PyTree:
        stepped, tensors, _ = state
        for tensor, grad in zip(tensors, jax.tree.leaves(grads), strict=True):
            tensor.grad = as_tensor(torch, grad).reshape(tensor.shape)
        stepped.step()
        return state

    def view(state: PyTree) -> dict[str, PyTree]:
        stepped, tensors, treedef = state
        states = [_own_state(stepped.state.get(tensor, {})) for tensor in tensors]
        params = treedef.unflatten(map(_array, tensors))
        return {"params": params, "state": dict(enumerate(states))}

    module = getattr(optimizer, "__module__", "").replace(f".{name.lower()}", "")
    source = f"{module}.{name}({arguments_text(args, kwargs)})"
    return Side(name, init, step, view, source=source, compiled=False)


def is_torch_optimizer(value: object) -> bool:
    """True if this is a class of PyTorch optimizers; imports nothing."""
    return isinstance(value, type) and any(
        base.__module__.startswith("torch.optim.optimizer") and base.__name__ == "Optimizer"
        for base in value.__mro__
    )


def import_torch(where: str) -> ModuleType:
    """Returns PyTorch; if it is missing, raises an error that begins with `where`."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise EquivalenceError(
            f"{where}: PyTorch cannot be imported ({error}); install it with `pip install torch`"
        ) from None


def as_tensor(torch: ModuleType, leaf: Leaf) -> Any:
    """A tensor of its own with the bits of an array."""
    array = np.array(leaf)  # a copy: the optimizer changes its tensors in place
    if array.dtype == jnp.bfloat16:  # which NumPy does not know, so by its bits
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Any) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        bits = tensor.view(import_torch("torch_side").int16)
        return np.array(bits.numpy()).view(jnp.bfloat16)
    return np.array(tensor.numpy())


def _own_state(state: Mapping[str, Any]) -> dict[str, PyTree]:
    """Returns PyTorch's state of a tensor; other than tensors and numbers is left out."""
    return {
        name: _array(value) if hasattr(value, "detach") else value
        for name, value in state.items()
        if hasattr(value, "detach") or isinstance(value, bool | int | float)
    }

"""A PyTorch optimizer as a side. PyTorch is imported when one is used, and only then."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.sides.errors import EquivalenceError
from equivalence_tests.sides.frameworks.foreign import (
    arguments_text,
    has_base,
    import_framework,
    make_instance,
)
from equivalence_tests.sides.side import Side
from optax_bridge.metadata.trees import Params, PyTree, Updates


def torch_side(optimizer: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Side:
    """A side that steps an optimizer of PyTorch, on the CPU.

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
      EquivalenceError: PyTorch is not installed, or this makes no optimizer of its.
    """
    torch = import_torch("torch_side")
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    if isinstance(optimizer, torch.optim.Optimizer):
        raise EquivalenceError(
            f"torch_side: expected a class, found an optimizer that has its tensors already; "
            f"write torch_side({type(optimizer).__name__}, lr=...)"
        )
    if not callable(optimizer):
        raise EquivalenceError(
            f"torch_side: expected a class of torch.optim, found {name}; write "
            "torch_side(torch.optim.AdamW, lr=1e-3)"
        )

    def make(tensors: list[Any]) -> Any:
        instance = functools.partial(optimizer, tensors, *args, **kwargs)
        kind = torch.optim.Optimizer
        return make_instance(instance, kind, "torch.optim.Optimizer", f"torch_side: {name}")

    make([torch.zeros(1, 1)])  # wrong arguments are an error here, not in the middle of a run

    def init(params: Params) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        tensors = [_tensor(torch, leaf) for leaf in leaves]
        return make(tensors), tensors, treedef

    def step(state: PyTree, grads: Updates) -> PyTree:
        stepped, tensors, _ = state
        for tensor, grad in zip(tensors, jax.tree.leaves(grads), strict=True):
            tensor.grad = _tensor(torch, grad).reshape(tensor.shape)
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


def is_torch_optimizer(value: Any) -> bool:
    """True if this is a class of PyTorch optimizers; imports nothing."""
    return has_base(value, "torch.optim.optimizer", "Optimizer")


def import_torch(where: str) -> Any:
    """PyTorch; `where` begins the message of the error without it."""
    return import_framework("torch", "PyTorch", where)


def _tensor(torch: Any, leaf: Any) -> Any:
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


def _own_state(state: Any) -> dict[str, Any]:
    """Returns PyTorch's state of a tensor; other than tensors and numbers is left out."""
    return {
        name: _array(value) if hasattr(value, "detach") else value
        for name, value in state.items()
        if hasattr(value, "detach") or isinstance(value, bool | int | float)
    }

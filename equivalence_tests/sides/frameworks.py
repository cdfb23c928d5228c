"""Optimizers of PyTorch and of Keras on its JAX backend as sides.

A framework is imported when a side of it is made, and only then.
"""

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from equivalence_tests.sides.error_text import error_text
from equivalence_tests.sides.side import EquivalenceError, Side
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

Kind = TypeVar("Kind")
Tensor = Any  # of a framework that need not be installed
Optimizer = Any


def arguments_text(args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Arguments as in a call."""
    named = (f"{name}={value!r}" for name, value in kwargs.items())
    return ", ".join([*map(repr, args), *named])


def make_instance(make: Callable[[], object], kind: type[Kind], expected: str, what: str) -> Kind:
    """Makes an object and returns it, if it is of a class."""
    try:
        result = make()
    except Exception as error:
        raise EquivalenceError(f"{what} {error_text(error)}") from None
    if not isinstance(result, kind):
        raise EquivalenceError(f"{what} made a {type(result).__name__}; expected a {expected}")
    return result


def import_framework(module: str, title: str, where: str) -> ModuleType:
    """Imports a framework."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise EquivalenceError(
            f"{where}: {title} cannot be imported ({error}); install it with `pip install {module}`"
        ) from None


def import_framework_of(module: str, where: str) -> None:
    """Imports the framework that a module is of, if it is of one."""
    framework = {"torch": import_torch, "keras": import_keras}.get(module.partition(".")[0])
    if framework is not None:
        framework(where)


def has_base(value: object, module: str, name: str) -> bool:
    """True if this is a class with a base of that name; imports nothing."""
    return isinstance(value, type) and any(
        base.__module__.startswith(module) and base.__name__ == name for base in value.__mro__
    )


def torch_side(optimizer: Callable[..., object], /, *args: object, **kwargs: object) -> Side:
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
      EquivalenceError: PyTorch is not installed, or this does not make one of its optimizers.
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

    def make(tensors: list[Tensor]) -> Optimizer:
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


def is_torch_optimizer(value: object) -> bool:
    """True if this is a class of PyTorch optimizers; imports nothing."""
    return has_base(value, "torch.optim.optimizer", "Optimizer")


def import_torch(where: str) -> ModuleType:
    """PyTorch; `where` begins the message of the error without it."""
    return import_framework("torch", "PyTorch", where)


def _tensor(torch: ModuleType, leaf: Leaf) -> Tensor:
    array = np.array(leaf)  # a copy: the optimizer changes its tensors in place
    if array.dtype == jnp.bfloat16:  # which NumPy does not know, so by its bits
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) == "torch.bfloat16":
        bits = tensor.view(import_torch("torch_side").int16)
        return np.array(bits.numpy()).view(jnp.bfloat16)
    return np.array(tensor.numpy())


def _own_state(state: Mapping[str, Tensor]) -> dict[str, PyTree]:
    """Returns PyTorch's state of a tensor; other than tensors and numbers is left out."""
    return {
        name: _array(value) if hasattr(value, "detach") else value
        for name, value in state.items()
        if hasattr(value, "detach") or isinstance(value, bool | int | float)
    }


def keras_side(optimizer: Callable[..., object], /, *args: object, **kwargs: object) -> Side:
    """A side that steps an optimizer of Keras 3 under its JAX backend.

        check_equivalence(keras_side(keras.optimizers.Adam, 1e-3), optax.adam(1e-3), params)

    Args:
      optimizer: a class of `keras.optimizers`, or a function that makes such an optimizer.
      *args: its arguments.
      **kwargs: its keyword arguments.

    Returns:
      The side. Its state is Keras' own, variable after variable.

    Raises:
      EquivalenceError: Keras is not installed or has another backend, or this does not make
        one of its optimizers.
    """
    keras = import_keras("keras_side")
    name = getattr(optimizer, "__name__", type(optimizer).__name__)

    def make() -> Optimizer:
        kind, expected = keras.optimizers.Optimizer, "keras.optimizers.Optimizer"
        return make_instance(
            lambda: optimizer(*args, **kwargs), kind, expected, f"keras_side: {name}"
        )

    make()  # wrong arguments are an error here, not in the middle of a run

    def init(params: Params) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        usual = keras.config.floatx()
        if any(leaf.dtype == np.float64 for leaf in leaves):
            keras.config.set_floatx("float64")  # the rate too is a variable
        try:
            stepped = make()
            stepped.build([keras.Variable(leaf, dtype=str(leaf.dtype)) for leaf in leaves])
        finally:
            keras.config.set_floatx(usual)
        apply = jax.jit(stepped.stateless_apply)  # as Keras trains
        return apply, leaves, [variable.value for variable in stepped.variables], treedef

    def step(state: PyTree, grads: Updates) -> PyTree:
        apply, leaves, variables, treedef = state
        leaves, variables = apply(variables, jax.tree.leaves(grads), leaves)
        return apply, leaves, variables, treedef

    def view(state: PyTree) -> dict[str, PyTree]:
        _, leaves, variables, treedef = state
        return {"params": treedef.unflatten(leaves), "state": list(variables)}

    source = f"keras.optimizers.{name}({arguments_text(args, kwargs)})"
    return Side(name, init, step, view, source=source, compiled=False)


def is_keras_optimizer(value: object) -> bool:
    """True if this is a class of Keras optimizers; imports nothing."""
    return has_base(value, "keras.", "BaseOptimizer")


def import_keras(where: str) -> ModuleType:
    """Keras, on JAX unless the user's settings or program have chosen."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    keras = import_framework("keras", "Keras", where)
    if keras.config.backend() != "jax":
        raise EquivalenceError(
            f"{where}: expected Keras' JAX backend, found {keras.config.backend()}; set "
            "KERAS_BACKEND=jax before keras is imported"
        )
    return keras

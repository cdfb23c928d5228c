"""Drives one case on the genuine flax.optim or on today's legacy_optim, with the same statements.

The recorder and the tests share this module, so that the library is all that differs between them.
It runs on Python 3.10 with jax 0.4.13 as well as on today's JAX.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import serialization
from flax.core import freeze

if TYPE_CHECKING:
    from equivalence_tests.reference.cases import Case

Tree = Any  # of nested dicts
Inputs = Iterable[tuple[Tree, Iterable[Any]]]  # gradients and learning rates of each step
Snapshot = tuple[Tree, Tree]  # parameters and state


def define(optim: ModuleType, spec: Mapping[str, Any]) -> Any:
    """Constructs the optimizer definition that `spec` describes."""
    kwargs = dict(spec["kwargs"])
    if "dtype_momentum" in kwargs:
        kwargs["dtype_momentum"] = getattr(jnp, kwargs["dtype_momentum"])
    parts: list[object] = []
    if "wrapped" in spec:
        parts = [define(optim, spec["wrapped"])]
    for group in spec.get("groups", ()):
        parts.append((_traversal(optim, group["match"]), define(optim, group["optimizer"])))
    return getattr(optim, spec["class"])(*parts, **kwargs)


def create(optim: ModuleType, case: Case, initial: Tree) -> Any:
    """Creates the Optimizer of a case."""
    definition, target = define(optim, case.optimizer), _in_container(case, initial)
    if case.focus is None:
        return definition.create(target)
    return definition.create(target, focus=_traversal(optim, case.focus))


def _in_container(case: Case, tree: Tree) -> Tree:
    """Returns a tree of JAX's arrays, in the containers of the case."""
    arrays = jax.tree_util.tree_map(jnp.asarray, tree)
    return freeze(arrays) if case.container == "frozen_dict" else arrays


def train(case: Case, optimizer: Any, inputs: Inputs) -> Iterator[Any]:
    """Applies every gradient in turn."""

    def step(optimizer: Any, gradient: Tree, rates: Tree) -> Any:
        if case.rate == "constructor":
            return optimizer.apply_gradient(gradient, **case.overrides)
        if case.rate == "groups":
            defaults = optimizer.optimizer_def.hyper_params
            groups = [
                default.replace(learning_rate=rate)
                for default, rate in zip(defaults, rates, strict=True)
            ]
            return optimizer.apply_gradient(gradient, hyper_params=groups)
        return optimizer.apply_gradient(gradient, learning_rate=rates[0], **case.overrides)

    run = jax.jit(step) if case.jit else step
    for gradient, rates in inputs:
        passed = [float(rate) if case.rate == "float" else jnp.asarray(rate) for rate in rates]
        optimizer = run(optimizer, _in_container(case, gradient), passed)
        yield optimizer


def snapshot(optimizer: Any) -> Snapshot:
    """Reads parameters and state of an Optimizer as nested dicts."""
    state_dict = serialization.to_state_dict
    return state_dict(optimizer.target), state_dict(optimizer.state)


def trajectory(optim: ModuleType, case: Case, initial: Tree, inputs: Inputs) -> Iterator[Snapshot]:
    """Runs a case from its start."""
    if case.optimizer["class"] == "DynamicScale":
        yield from _dynamic_scale(optim, case, initial, inputs)
        return
    for optimizer in train(case, create(optim, case, initial), inputs):
        yield snapshot(optimizer)


def _traversal(optim: ModuleType, pattern: str) -> object:
    return optim.ModelParamTraversal(lambda path, _: re.search(pattern, path) is not None)


def _dynamic_scale(
    optim: ModuleType, case: Case, params: Tree, inputs: Inputs
) -> Iterator[Snapshot]:
    """Gradient descent on a float16 loss, linear in the parameters, with a dynamic loss scale."""
    module = importlib.import_module(f"{optim.__name__}.dynamic_scale")

    def loss(params: Tree, inputs: Tree) -> Tree:
        half = [(params[path].astype(jnp.float16), inputs[path]) for path in sorted(params)]
        total = sum(jnp.sum(param * value.astype(jnp.float16)) for param, value in half)
        total = jnp.asarray(total, jnp.float32)
        return (total, {"doubled": 2 * total}) if case.overrides.get("has_aux") else total

    def step(scale: Any, params: Tree, inputs: Tree) -> Tree:
        scale, finite, result, grads = scale.value_and_grad(loss, **case.overrides)(params, inputs)
        value, aux = result if case.overrides.get("has_aux") else (result, {})
        params = {
            path: param - 0.01 * jnp.where(finite, grads[path], 0.0)
            for path, param in params.items()
        }
        state = {"fin_steps": scale.fin_steps, "scale": scale.scale, "finite": finite}
        return scale, params, {**state, "loss": value, "aux": aux, "grads": grads}

    run = jax.jit(step) if case.jit else step
    scale = module.DynamicScale(**case.optimizer["kwargs"])
    params = _in_container(case, params)
    for gradient, _ in inputs:
        scale, params, state = run(scale, params, _in_container(case, gradient))
        yield params, serialization.to_state_dict(state)

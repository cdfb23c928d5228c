"""Drives one case on the genuine flax.optim or on today's legacy_optim, with the same statements.

The recorder and the tests share this module, so that the library is all that differs between them.
It runs on Python 3.10 with jax 0.4.13 as well as on today's JAX.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization, traverse_util
from flax.core import freeze

if TYPE_CHECKING:
    from equivalence_tests.reference.cases import Case

Flat = dict[str, np.ndarray]
# A tree, an array, and of either library a definition, an Optimizer or a scale.
Tree = Leaf = Optimizer = Any


def flatten(tree: Tree) -> tuple[Flat, dict[str, str]]:
    """Flattens a state dict to '/'-joined paths."""
    arrays: Flat = {}
    absent: dict[str, str] = {}
    flat = traverse_util.flatten_dict(tree, keep_empty_nodes=True, sep="/")
    for path, leaf in sorted(flat.items()):
        if leaf is None or leaf is traverse_util.empty_node:
            absent[path] = "none" if leaf is None else "empty"
        else:
            arrays[path] = np.asarray(leaf)
    return arrays, absent


def nest(arrays: Mapping[str, Leaf], container: str = "dict") -> Tree:
    """Builds the nested dict, or FrozenDict, of arrays by '/'-joined path."""
    tree = traverse_util.unflatten_dict(arrays, sep="/")
    return freeze(tree) if container == "frozen_dict" else tree


def define(optim: ModuleType, spec: Mapping[str, Any]) -> Optimizer:
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


def create(optim: ModuleType, case: Case, initial: Mapping[str, np.ndarray]) -> Optimizer:
    """Creates the Optimizer of a case."""
    definition = define(optim, case.optimizer)
    target = jax.tree_util.tree_map(jnp.asarray, nest(initial, case.container))
    if case.focus is None:
        return definition.create(target)
    return definition.create(target, focus=_traversal(optim, case.focus))


def train(
    case: Case, optimizer: Optimizer, gradients: Mapping[str, np.ndarray], rates: np.ndarray
) -> Iterator[Optimizer]:
    """Applies every gradient in turn."""

    def step(optimizer: Optimizer, gradient: Tree, rates: Tree) -> Optimizer:
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
    for index, row in enumerate(rates):
        gradient = {path: jnp.asarray(stack[index]) for path, stack in gradients.items()}
        passed = [float(rate) if case.rate == "float" else jnp.asarray(rate) for rate in row]
        optimizer = run(optimizer, nest(gradient, case.container), passed)
        yield optimizer


def snapshot(optimizer: Optimizer) -> tuple[Flat, Flat, dict[str, str]]:
    """Reads parameters and state of an Optimizer."""
    params, _ = flatten(serialization.to_state_dict(optimizer.target))
    state, absent = flatten(serialization.to_state_dict(optimizer.state))
    return params, state, absent


def trajectory(
    optim: ModuleType,
    case: Case,
    initial: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    rates: np.ndarray,
) -> Iterator[tuple[Flat, Flat, dict[str, str]]]:
    """Runs a case from its start."""
    if case.optimizer["class"] == "DynamicScale":
        yield from _dynamic_scale(optim, case, initial, gradients)
        return
    for optimizer in train(case, create(optim, case, initial), gradients, rates):
        yield snapshot(optimizer)


def _traversal(optim: ModuleType, pattern: str) -> object:
    return optim.ModelParamTraversal(lambda path, _: re.search(pattern, path) is not None)


def _dynamic_scale(
    optim: ModuleType,
    case: Case,
    initial: Mapping[str, np.ndarray],
    inputs: Mapping[str, np.ndarray],
) -> Iterator[tuple[Flat, Flat, dict[str, str]]]:
    """Gradient descent on a float16 loss, linear in the parameters, with a dynamic loss scale."""
    module = importlib.import_module(f"{optim.__name__}.dynamic_scale")

    def loss(params: Tree, inputs: Tree) -> Tree:
        half = [(params[path].astype(jnp.float16), inputs[path]) for path in sorted(params)]
        total = sum(jnp.sum(param * value.astype(jnp.float16)) for param, value in half)
        total = jnp.asarray(total, jnp.float32)
        return (total, {"doubled": 2 * total}) if case.overrides.get("has_aux") else total

    def step(scale: Optimizer, params: Tree, inputs: Tree) -> Tree:
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
    params: Tree = {path: jnp.asarray(value) for path, value in initial.items()}
    for index in range(len(next(iter(inputs.values())))):
        gradient = {path: jnp.asarray(stack[index]) for path, stack in inputs.items()}
        scale, params, state = run(scale, params, gradient)
        arrays, absent = flatten(serialization.to_state_dict(state))
        yield {path: np.asarray(value) for path, value in params.items()}, arrays, absent

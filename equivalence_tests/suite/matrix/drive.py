"""The ways to drive a side: a run is two halves, and each way compiles one half once."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.side import Side
from equivalence_tests.suite.matrix import axes
from equivalence_tests.suite.matrix.cases import MatrixCase

ENSEMBLE = 3


@dataclass(frozen=True)
class Driven:
    """A side under a drive.

    Attributes:
      start: parameters -> state.
      half: (state, gradients and rates of shape (steps, ...)) -> (state, views).
    """

    start: Callable[[Any], Any]
    half: Callable[[Any, Any], tuple[Any, Any]]


@contextlib.contextmanager
def settings(case: MatrixCase) -> Iterator[None]:
    """Within it, the case's dtype is allowed."""
    with float64() if case.dtype == "float64" else contextlib.nullcontext():
        yield


def driven(side: Side, drive: str) -> Driven:
    """A side under one of `axes.DRIVES`."""

    def body(state: Any, given: Any) -> tuple[Any, Any]:
        state = side.step(state, *given)
        return state, side.view(state)

    def scan(state: Any, inputs: Any) -> tuple[Any, Any]:
        return jax.lax.scan(body, state, inputs)

    if drive in ("eager", "jit", "donate"):
        return Driven(side.init, _loop(body, drive))
    if drive == "vmap":
        return _ensemble(side, scan)
    if drive == "sharded":
        return _sharded(side, scan)
    if drive == "data-parallel":
        legacy = side.name == "legacy"
        return _replicated(side, scan) if legacy else _data_parallel(side, body)
    return Driven(side.init, jax.jit(scan))


def run(made: Driven, params: Any, grads: Any, rates: Any, *, resumed: bool = False) -> Any:
    """A whole run: both halves, with a trip through bytes in between if `resumed`."""
    state = made.start(jax.tree.map(jnp.asarray, params))
    seen = []
    for first in range(0, len(rates), axes.HALF):
        inputs = jax.tree.map(lambda x, i=first: jnp.asarray(x[i : i + axes.HALF]), (grads, rates))
        if resumed and first:
            fresh = made.start(jax.tree.map(jnp.asarray, params))
            state = serialization.from_bytes(fresh, serialization.to_bytes(state))
            state = jax.tree.map(jnp.asarray, state)
        state, views = made.half(state, inputs)
        seen.append(jax.device_get(views))
    return jax.tree.map(lambda *halves: np.concatenate(halves), *seen)


def _loop(body: Callable[[Any, Any], tuple[Any, Any]], drive: str) -> Callable[..., Any]:
    take = body
    if drive != "eager":
        take = jax.jit(body, donate_argnums=(0,) if drive == "donate" else ())

    def half(state: Any, inputs: Any) -> tuple[Any, Any]:
        seen = []
        if drive == "donate":  # the first state shares buffers with the caller's parameters
            state = jax.tree.map(jnp.copy, state)
        for index in range(len(jax.tree.leaves(inputs)[0])):
            state, view = take(state, jax.tree.map(lambda x, i=index: x[i], inputs))
            seen.append(jax.device_get(view))
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *seen)

    return half


def _ensemble(side: Side, scan: Callable[..., Any]) -> Driven:
    def start(params: Any) -> Any:
        several = jax.tree.map(
            lambda leaf: jnp.stack([leaf * (k + 1) for k in range(ENSEMBLE)]), params
        )
        return jax.vmap(side.init)(several)

    return Driven(start, jax.jit(jax.vmap(scan, in_axes=(0, None), out_axes=(0, 1))))


def _mesh() -> Mesh:
    device = jnp.zeros(()).devices().pop()  # of the platform that the run is on
    devices = jax.local_devices(backend=device.platform)
    count = max(n for n in (1, 2, 4, 8) if n <= len(devices))
    return Mesh(np.array(devices[:count]), ("batch",))


def _sharded(side: Side, scan: Callable[..., Any]) -> Driven:
    mesh = _mesh()

    def placed(tree: Any, axis: int) -> Any:
        def place(leaf: Any) -> Any:
            splits = leaf.ndim > axis and leaf.size and leaf.shape[axis] % mesh.size == 0
            spec = PartitionSpec(*[None] * axis, "batch") if splits else PartitionSpec()
            return jax.device_put(leaf, NamedSharding(mesh, spec))

        return jax.tree.map(place, tree)

    compiled = jax.jit(scan)
    return Driven(
        lambda params: placed(side.init(placed(params, 0)), 0),
        lambda state, inputs: compiled(state, (placed(inputs[0], 1), inputs[1])),
    )


def per_device(grads: Any, devices: int) -> Any:
    """Gradients of each device, of shape (steps, devices, ...), whose sum has no rounding.

    They are rounded to 8 bits and multiplied by 0, 1 or 2, so every order of summation gives the
    same bits, and the claims need no allowance for it.
    """

    def split(leaf: Any) -> Any:
        short = leaf.astype(jnp.bfloat16).astype(leaf.dtype)
        return jnp.stack([short * (device % 3) for device in range(devices)], axis=1)

    return jax.tree.map(split, grads)


def _replicated(side: Side, scan: Callable[..., Any]) -> Driven:
    devices = list(_mesh().devices.flat)
    compiled = jax.pmap(scan, axis_name="batch", in_axes=(0, (1, None)), devices=devices)

    def half(state: Any, inputs: Any) -> tuple[Any, Any]:
        state, views = compiled(state, (per_device(inputs[0], len(devices)), inputs[1]))
        return state, jax.tree.map(lambda leaf: leaf[0], views)

    return Driven(lambda params: side.init(params).replicate(devices), half)


def _data_parallel(side: Side, body: Callable[..., Any]) -> Driven:
    mesh = _mesh()
    everywhere = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(None, "batch"))

    def averaged(state: Any, given: Any) -> tuple[Any, Any]:
        grads, rate = given
        return body(state, (jax.tree.map(lambda g: jnp.mean(g, axis=0), grads), rate))

    compiled = jax.jit(lambda state, inputs: jax.lax.scan(averaged, state, inputs))

    def half(state: Any, inputs: Any) -> tuple[Any, Any]:
        grads = jax.device_put(per_device(inputs[0], mesh.size), split)
        return compiled(state, (grads, inputs[1]))

    return Driven(lambda params: jax.device_put(side.init(params), everywhere), half)

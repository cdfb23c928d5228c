"""The trajectory of a side: its view after every step, under one of the ways to take steps.

Every comparison of this package is one of two trajectories that are made here. (The reference's
replay stands apart: it also runs on Python 3.10 with the genuine flax 0.5.3.)
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from equivalence_tests.sides.side import Side
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

# How the steps are taken: one after another (`eager` as they are, `jit` compiled, `donate` with the
# state's memory given away), in one program (`scan`), for several sets of parameters at once
# (`vmap`), with arrays split over devices, or with gradients averaged over them.
DRIVES = ("eager", "jit", "donate", "scan", "vmap", "sharded", "data-parallel")
LOOPS = ("eager", "jit", "donate")

ENSEMBLE = 3  # sets of parameters under `vmap`

# What is given at each step: trees with a leading axis of steps, one for each argument of
# `Side.step`; to a loop also a function (number of the step from 0, the last view or None) -> those
# arguments, for gradients that depend on the parameters.
Inputs = Sequence[PyTree] | Callable[[int, PyTree], Sequence[PyTree]]
Program = Callable[..., tuple[PyTree, PyTree]]  # (state, ...) -> (state, views)


@dataclass(frozen=True)
class Driven:
    """A side under a drive, with its compiled programs for the next trajectory."""

    init: Callable[[Params], PyTree]
    steps: Callable[[PyTree, Inputs, int, int], tuple[PyTree, PyTree]]


def trajectory(
    side: Side | Driven,
    params: Params,
    inputs: Inputs,
    steps: int | None = None,
    *,
    parts: int = 1,
    resumed: bool = False,
) -> PyTree:
    """Returns the view of a side after every step."""
    driven_side = driver(side) if isinstance(side, Side) else side
    if steps is None:
        steps = len(jax.tree.leaves(inputs)[0])
    length = steps // parts
    state, seen = driven_side.init(params), []
    for first in range(0, steps, length):
        if resumed and first:
            data = serialization.to_bytes(state)
            state = jax.tree.map(
                jnp.asarray, serialization.from_bytes(driven_side.init(params), data)
            )
        state, views = driven_side.steps(state, inputs, first, length)
        seen.append(jax.device_get(views))
    return seen[0] if parts == 1 else jax.tree.map(lambda *each: np.concatenate(each), *seen)


def driver(side: Side, drive: str = "scan") -> Driven:
    """A side under one of `DRIVES`; over several devices, it is a power of two of local ones."""

    def init(params: Params) -> Params:
        return side.init(jax.tree.map(jnp.asarray, params) if side.compiled else params)

    def body(state: PyTree, row: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
        if not side.compiled or drive == "eager":
            state = side.step(state, *row)
            return state, side.view(state)
        # The step is compiled for itself: what stands around it differs from side to side, and XLA
        # (0.12 does) would fuse products and sums across and round each side in its own way.
        state, row = jax.lax.optimization_barrier((state, row))
        state = jax.lax.optimization_barrier(side.step(state, *row))
        return state, side.view(state)

    def scan(state: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        return jax.lax.scan(body, state, inputs)

    if drive in LOOPS:
        return Driven(init, _loop(body, drive))
    if drive == "vmap":

        def several(params: Params) -> PyTree:
            return jax.tree.map(
                lambda leaf: jnp.stack([jnp.asarray(leaf) * (k + 1) for k in range(ENSEMBLE)]),
                params,
            )

        program = jax.jit(jax.vmap(scan, in_axes=(0, None), out_axes=(0, 1)))
        return Driven(lambda params: jax.vmap(side.init)(several(params)), _at_once(program))
    if drive == "scan":
        return Driven(init, _at_once(jax.jit(scan)))
    mesh = Mesh(np.array(_local()), ("batch",))
    if drive == "sharded":
        return _sharded_driver(init, scan, mesh)
    if side.definition is not None:
        return _replicated_driver(init, scan, mesh)
    return _data_parallel(init, body, mesh)


def per_device(grads: Updates, devices: int) -> PyTree:
    """Gradients of each device, of shape (steps, devices, ...), whose sum has no rounding."""

    def split(leaf: Leaf) -> PyTree:
        short = jnp.asarray(leaf).astype(jnp.bfloat16).astype(leaf.dtype)
        return jnp.stack([short * (device % 3) for device in range(devices)], axis=1)

    return jax.tree.map(split, grads)


def _at_once(
    program: Program,
) -> Program:
    """All steps by one call of a program."""

    def steps(state: PyTree, inputs: Inputs, first: int, count: int) -> tuple[PyTree, PyTree]:
        return program(state, _rows(inputs, first, count))

    return steps


def _rows(inputs: Inputs, first: int, count: int) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[first : first + count]), tuple(inputs))  # type: ignore[arg-type]


def _loop(body: Program, drive: str) -> Program:
    take, convert = body, jnp.asarray
    if drive != "eager":
        take = jax.jit(body, donate_argnums=(0,) if drive == "donate" else ())
        convert = np.asarray  # jit takes it, at a fifth of the time

    def steps(state: PyTree, inputs: Inputs, first: int, count: int) -> tuple[PyTree, PyTree]:
        if drive == "donate":  # the first state shares buffers with the caller's parameters
            state = jax.tree.map(jnp.copy, state)
        seen: list[PyTree] = []
        for index in range(first, first + count):
            if callable(inputs):
                row = tuple(inputs(index, seen[-1] if seen else None))
            else:
                row = jax.tree.map(lambda leaf, i=index: convert(leaf[i]), tuple(inputs))
            state, view = take(state, row)
            # Not `device_get`, which is for copies from a GPU that go on at the same time.
            seen.append(jax.tree.map(np.asarray, view))
        # The same leaves at the same paths, if not in the same containers: dict and FrozenDict.
        leaves = zip(*map(jax.tree.leaves, seen), strict=True)
        return state, jax.tree.unflatten(jax.tree.structure(seen[0]), map(np.stack, leaves))

    return steps


def _local() -> list[Any]:
    device = jnp.zeros(()).devices().pop()  # of the platform that the run is on
    devices = jax.local_devices(backend=device.platform)
    return devices[: max(n for n in (1, 2, 4, 8) if n <= len(devices))]


def _sharded_driver(init: Callable[[Params], PyTree], scan: Program, mesh: Mesh) -> Driven:
    def split(tree: PyTree, axis: int) -> PyTree:
        def put(leaf: Leaf) -> Leaf:
            splits = leaf.ndim > axis and leaf.size and leaf.shape[axis] % mesh.size == 0
            spec = PartitionSpec(*[None] * axis, "batch") if splits else PartitionSpec()
            return jax.device_put(leaf, NamedSharding(mesh, spec))

        return jax.tree.map(put, tree)

    compiled = jax.jit(scan)

    def steps(state: PyTree, inputs: Inputs, first: int, count: int) -> tuple[PyTree, PyTree]:
        grads, *others = _rows(inputs, first, count)
        return compiled(state, (split(grads, 1), *others))

    return Driven(lambda params: split(init(split(params, 0)), 0), steps)


def _replicated_driver(init: Callable[[Params], PyTree], scan: Program, mesh: Mesh) -> Driven:
    """Data-parallel as `flax.optim` did it: `replicate()`, then pmap."""
    devices = list(mesh.devices.flat)

    @functools.cache
    def parallel_program(arguments: int) -> Program:
        axes = (1, *[None] * (arguments - 1))
        return jax.pmap(scan, axis_name="batch", in_axes=(0, axes), devices=devices)

    def program(state: PyTree, inputs: PyTree) -> tuple[PyTree, PyTree]:
        grads, *others = inputs
        each = per_device(grads, len(devices))
        state, views = parallel_program(len(inputs))(state, (each, *others))
        return state, jax.tree.map(lambda leaf: leaf[0], views)

    return Driven(lambda params: init(params).replicate(devices), _at_once(program))


def _data_parallel(init: Callable[[Params], PyTree], body: Program, mesh: Mesh) -> Driven:
    everywhere = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(None, "batch"))

    def average_step(state: PyTree, row: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
        grads, *others = row
        return body(state, (jax.tree.map(lambda g: jnp.mean(g, axis=0), grads), *others))

    compiled = jax.jit(
        lambda state, inputs: jax.lax.scan(average_step, state, inputs), out_shardings=everywhere
    )

    def steps(state: PyTree, inputs: Inputs, first: int, count: int) -> tuple[PyTree, PyTree]:
        grads, *others = _rows(inputs, first, count)
        grads = jax.device_put(per_device(grads, mesh.size), split)
        return compiled(state, (grads, *jax.device_put(others, everywhere)))

    return Driven(lambda params: jax.device_put(init(params), everywhere), steps)

"""Training the transformer on a mesh, and on one device, with what XLA chooses by shapes pinned."""

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding
from jax.stages import Compiled

from equivalence_tests.sides.inputs import digits
from equivalence_tests.sides.precision import pin_precision
from equivalence_tests.sides.side import Side
from equivalence_tests.sides.trajectory import driver, trajectory
from equivalence_tests.suite.case import Case
from equivalence_tests.suite.sharded.partitioned import compiler_options, split_sums
from optax_bridge import TrainState, state_shardings
from optax_bridge.correspondence.recipe import Call, build
from optax_bridge.metadata.axis_metadata import key_names, leaves_with_path
from optax_bridge.metadata.kept_axes import state_axes
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

DEVICES, STEPS = 8, 20
Rule = Callable[[str, Leaf], PartitionSpec]  # of the path and the array of a parameter
TRAINING, GIVEN = "training", "given gradients"

OPTIMIZERS = {
    "momentum": Call("optax_bridge.momentum", (0.1,)),
    "adam": Call("optax_bridge.adam", (0.01,), {"weight_decay": 0.01}),
    "adafactor": Call("optax_bridge.adafactor", (0.01,), {"min_dim_size_to_factor": 8}),
}


@dataclass(frozen=True)
class Layout:
    """A layout of a training on the mesh."""

    mesh: dict[str, int]
    rule: Rule
    batch: PartitionSpec = field(default_factory=PartitionSpec)
    state_rule: Rule | None = None


def _whole_rule(path: str, value: Leaf) -> PartitionSpec:
    del path, value
    return PartitionSpec()


def _first_axis_rule(path: str, value: Leaf) -> PartitionSpec:
    """The first axis that can be divided over the data axis, as FSDP shards."""
    del path
    for index, size in enumerate(value.shape):
        if size % DEVICES == 0:
            return PartitionSpec(*[None] * index, "data")
    return PartitionSpec()


def _hidden_rule(path: str, value: Leaf) -> PartitionSpec:
    """The hidden units of the block's two dense layers."""
    del value
    return {
        "/Dense_2/kernel": PartitionSpec(None, "model"),
        "/Dense_2/bias": PartitionSpec("model"),
        "/Dense_1/kernel": PartitionSpec("model", None),
    }.get(path, PartitionSpec())


def _hidden_and_heads_rule(path: str, value: Leaf) -> PartitionSpec:
    """The heads of the attention as well."""
    of_heads = {
        **{f"{name}/kernel": PartitionSpec(None, "model") for name in ("query", "key", "value")},
        **{f"{name}/bias": PartitionSpec("model") for name in ("query", "key", "value")},
        "out/kernel": PartitionSpec("model"),
    }
    _, _, within = path.partition("Attention_0/")
    return of_heads.get(within, _hidden_rule(path, value))


_DATA = {"data": DEVICES}
LAYOUTS = {
    "replicated": Layout(_DATA, _whole_rule),
    "optimizer state": Layout(_DATA, _whole_rule, state_rule=_first_axis_rule),
    "data": Layout(_DATA, _whole_rule, PartitionSpec("data")),
    "FSDP": Layout(_DATA, _first_axis_rule, PartitionSpec("data")),
    "tensor": Layout({"model": DEVICES}, _hidden_rule),
    "data and tensor": Layout(
        {"data": 4, "model": 2}, _hidden_and_heads_rule, PartitionSpec("data")
    ),
}


@dataclass(frozen=True, order=True)
class ShardedCase(Case):
    """One run on the mesh."""

    problem = "transformer"
    axes = (("entry",), ("layout",), ("problem",))

    entry: str
    layout: str
    drive: str = TRAINING
    processes: int = 1

    def __str__(self) -> str:
        parts = ("sharded", self.entry, self.layout, self.drive, f"{self.processes}_processes")
        return "-".join(parts).replace(" ", "_")

    @property
    def column(self) -> str:
        """Its column in the report's picture."""
        return f"{DEVICES} devices: {self.layout}"

    @property
    def program(self) -> str:
        """The optimizer, whose run on one device is the reference of all layouts."""
        return self.entry


def run(case: ShardedCase) -> tuple[dict[str, np.ndarray], list[str]]:
    """A case's run on all devices of all processes."""
    layout = LAYOUTS[case.layout]
    devices = np.array(jax.devices("cpu")[:DEVICES]).reshape(tuple(layout.mesh.values()))
    mesh = Mesh(devices, tuple(layout.mesh))
    start, shardings = _place_state(case.entry, layout, mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    fixed_grads = reference(case.entry, GIVEN)[1] if case.drive == GIVEN else None
    return _drive(start, fixed_grads, shardings, NamedSharding(mesh, layout.batch), everywhere)


@functools.cache
def reference(entry: str, drive: str) -> tuple[dict[str, np.ndarray], PyTree]:
    """The run on one device, and its gradients of shape (steps, ...) as a tree."""
    job, tx = digits.task("transformer"), build(OPTIMIZERS[entry])
    start = TrainState.create(apply_fn=None, params=job.params, tx=tx)
    here = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    fixed_grads = reference(entry, TRAINING)[1] if drive == GIVEN else None
    seen, _ = _drive(start, fixed_grads, _like(here, start), here, here)
    grads = [seen[name] for name in _by_path("grads", job.params)]
    return seen, jax.tree.structure(job.params).unflatten(grads)


def _place_state(entry: str, layout: Layout, mesh: Mesh) -> tuple[TrainState, TrainState]:
    """The first state on the mesh, and where its arrays lie."""
    job, tx = digits.task("transformer"), build(OPTIMIZERS[entry])

    def create(rule: Rule) -> TrainState:
        create_state: Any = TrainState.create_sharded
        return create_state(mesh=mesh, rules=rule, init=lambda: job.params, apply_fn=None, tx=tx)

    state = create(layout.rule)
    shardings = state_shardings(state, mesh, layout.rule)
    if layout.state_rule is not None:
        state_first = create(layout.state_rule)
        state = state.replace(opt_state=state_first.opt_state)
        placed = state_shardings(state_first, mesh, layout.state_rule)
        shardings = shardings.replace(opt_state=placed.opt_state)
    return state, shardings


def _drive(
    start: PyTree, fixed_grads: PyTree, shardings: PyTree, batch: Sharding, everywhere: Sharding
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Takes `STEPS` steps, on gradients of the model's own or on those that are given."""
    data, is_given = digits.batches(STEPS), fixed_grads is not None

    def at(tree: PyTree, index: int, where: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf, w: _place(leaf[index], w), tree, where)

    start = jax.tree.map(_place, start, shardings)
    programs = [_compile_step(start, shardings)]
    if not is_given:
        where = ((shardings.params, (batch, batch)), (everywhere, shardings.params))
        programs.append(_compile_gradients(start.params, at(data, 0, where[0][1]), *where))
    gather = jax.jit(lambda tree: tree, out_shardings=everywhere)

    def inputs(index: int, _: PyTree) -> tuple[PyTree]:
        if is_given:
            return (at(fixed_grads, index, shardings.params),)
        return (at(data, index, (batch, batch)),)

    def step(state: PyTree, row: PyTree) -> PyTree:
        state, *_ = state
        loss, grads = (jnp.zeros([]), row) if is_given else programs[1](state.params, row)
        return programs[0](state, grads), loss, grads

    def view(state: PyTree) -> dict[str, np.ndarray]:
        state, loss, grads = state
        named = _by_path("params", state.params) | _by_path("opt_state", state.opt_state)
        views = gather({"loss": loss, **named, **_by_path("grads", grads)})
        return {name: np.asarray(leaf.addressable_data(0)) for name, leaf in views.items()}

    side = Side("TrainState", lambda _: (start, None, None), step, view, compiled=False)
    seen = trajectory(driver(side, "eager"), None, inputs, STEPS)
    return seen, sorted({name for each in programs for name in split_sums(each.as_text() or "")})


# Gradients and step are a program each: in one, the compiler would fuse the end of the one with the
# beginning of the other, and contract products and sums in another way on another layout.
def _compile_step(start: PyTree, shardings: PyTree) -> Compiled:
    """The optimizer's step, with what XLA chooses by shapes pinned."""
    jitted = jax.jit(
        lambda state, grads: state.apply_gradients(grads=grads),
        in_shardings=(shardings, shardings.params),
        out_shardings=shardings,
        compiler_options=compiler_options(),
    )
    return jitted.lower(start, start.params).compile()


def _compile_gradients(params: Params, batch: PyTree, inputs: PyTree, outputs: PyTree) -> Compiled:
    """Loss and gradients of the transformer, pinned too; `inputs` and `outputs` are shardings."""
    job = digits.task("transformer")

    def gradients(params: Params, batch: PyTree) -> tuple[jax.Array, Updates]:
        (loss, _), grads = jax.value_and_grad(job.loss, has_aux=True)(params, {}, batch)
        return loss, grads

    jitted = jax.jit(
        gradients,
        in_shardings=inputs,
        out_shardings=outputs,
        compiler_options=compiler_options(),
    )
    with pin_precision():
        return jitted.lower(params, batch).compile()


@functools.cache
def vanishing(entry: str) -> tuple[str, ...]:
    """The arrays that belong to parameters whose gradient is zero but for rounding."""
    params, tx = digits.task("transformer").params, build(OPTIMIZERS[entry])
    noise = digits.vanishing("transformer")
    state = jax.eval_shape(tx.init, params)
    owners = state_axes(tx, params, state)
    names = [
        name
        for name, owner in zip(_by_path("opt_state", state), owners, strict=True)
        if owner and noise[owner[0]]
    ]
    for root in ("params", "grads"):
        names += itertools.compress(_by_path(root, params), noise)
    return tuple(names)


def _place(leaf: Leaf, where: Sharding) -> jax.Array:
    """An array where it belongs; of devices of several processes each gives its own part."""
    is_array = isinstance(leaf, jax.Array)
    if is_array and (where.is_fully_addressable or not leaf.is_fully_addressable):
        return jax.device_put(leaf, where)
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, where, lambda index: host[index])


def _by_path(root: str, tree: PyTree) -> dict[str, PyTree]:
    return {"/".join(key_names(path)): leaf for path, leaf in leaves_with_path({root: tree})}


def _like(where: Sharding, tree: PyTree) -> PyTree:
    """The same sharding for each array."""
    return jax.tree.map(lambda _: where, tree)

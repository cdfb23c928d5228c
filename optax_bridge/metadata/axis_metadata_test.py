"""Boxes through optimizers: a test for each of the things that fail without this."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, struct
from flax.core import meta, unfreeze
from flax.linen import partitioning
from jax.sharding import AxisType, PartitionSpec

import optax_bridge
from optax_bridge.metadata import axis_metadata, param_axes
from optax_bridge.metadata.paths import paths_of

NAMES = {"kernel": ("embed", "mlp"), "bias": ("mlp",)}
RAW = {"dense": {"kernel": jnp.arange(128.0 * 256).reshape(128, 256) / 9e4, "bias": jnp.ones(256)}}
BOXED = {"dense": {k: nn.Partitioned(v, NAMES[k]) for k, v in RAW["dense"].items()}}
GRADS = jax.tree.map(jnp.cos, RAW)
RULES = [("embed", "data"), ("mlp", "model")]
OURS = [e.name for e in optax_bridge.correspondence.ENTRIES.values() if "boxed" not in e.excluded]
ADAFACTORS = {"optax": optax.adafactor(0.1), "ours": optax_bridge.adafactor(0.1)}
MASKED = optax.masked(optax.adafactor(0.1), {"dense": {"kernel": True, "bias": False}})


STEP = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))


def mesh(kind: Any = AxisType.Auto) -> Any:
    return jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind,) * 2)


def create(params: Any, tx: Any) -> Any:
    return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)


def assert_equal(left: Any, right: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, *map(axis_metadata.unboxed, (left, right)))


def assert_close(sharded: Any, alone: Any) -> None:
    """Means and norms are split over devices: 2e-6 of the scale is 16 ULP."""
    for ours, theirs in zip(jax.tree.leaves(sharded), jax.tree.leaves(alone), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


def assert_ranks(tree: Any) -> None:
    for path, box in axis_metadata.leaves_with_path(tree):
        if axis_metadata.is_box(box):
            assert len(box.names) == box.value.ndim, path


def on_the_mesh(tx: Any, where: Any) -> Any:
    return optax_bridge.TrainState.create_sharded(
        mesh=where, rules=RULES, init=lambda: BOXED, apply_fn=None, tx=tx
    )


@pytest.mark.parametrize("tx", ADAFACTORS.values(), ids=ADAFACTORS)
def test_1_adafactor_state_has_the_rank_of_its_names(tx: Any):
    state = on_the_mesh(tx, mesh())
    assert_ranks(state.opt_state)
    factored = state.opt_state if hasattr(state.opt_state, "v_row") else state.opt_state[0]
    row, column = factored.v_row["dense"]["kernel"], factored.v_col["dense"]["kernel"]
    assert (row.names, column.names) == (("embed",), ("mlp",))
    assert row.value.sharding.spec == PartitionSpec("data")
    assert column.value.sharding.spec == PartitionSpec("model")
    shardings = optax_bridge.state_shardings(state, mesh(), RULES)
    step = jax.jit(lambda s, g: s.apply_gradients(grads=g), out_shardings=shardings)
    assert_close(step(state, GRADS), STEP(create(RAW, tx), GRADS))


# The others have a rule for every number alone, of which the shapes tell.
LOOKS_AT_AXES = ("adafactor", "lamb", "weight_norm", "optax masked")


@pytest.mark.parametrize(
    ("name", "grads"),
    [
        *((name, "boxed") for name in (*OURS, "optax masked")),
        *((name, "raw") for name in ("adafactor", "optax masked")),
    ],
)
def test_7_boxed_and_unboxed_gradients(name: str, grads: str):
    tx: Any = MASKED
    if name != "optax masked":
        entry = optax_bridge.correspondence.ENTRIES[name]
        tx = optax_bridge.from_legacy(entry.definition(entry.cases[0], 0.1))
    state = create(BOXED, tx)
    given = axis_metadata.boxed_as(BOXED, GRADS) if grads == "boxed" else GRADS
    assert_ranks(state.opt_state)
    if name not in LOOKS_AT_AXES:
        new = jax.eval_shape(lambda state: state.apply_gradients(grads=given), state)
        assert jax.tree.structure(new) == jax.tree.structure(state)
        return
    new, alone = state.apply_gradients(grads=given), create(RAW, tx).apply_gradients(grads=GRADS)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert_equal(new.params, alone.params)
    assert_equal(jax.tree.leaves(new.opt_state), jax.tree.leaves(alone.opt_state))


WRONG = {"dense": {"kernel": nn.Partitioned(jnp.ones((2, 3)), ("embed", "mlp", "heads"))}}  # type: ignore[arg-type]
SHORT = {"kernel_axes": partitioning.AxisMetadata(("embed",))}
AXES = {"stack": {"kernel_axes": SHORT["kernel_axes"]}, "bias_axes": SHORT["kernel_axes"]}
VARIABLE: Any = nnx.Param(jnp.ones((2, 3, 4))).replace(out_sharding=("embed", "mlp"))
CASES: dict[str, Any] = {
    "wrong rank": lambda: create(WRONG, optax_bridge.adam(0.1)),
    "wrong rank, of a sharding": lambda: optax_bridge.param_shardings(WRONG, mesh()),
    "wrong name": lambda: optax_bridge.remove_axis(BOXED, 0, "layers"),
    "no such axis": lambda: optax_bridge.remove_axis(BOXED, 1, "mlp"),
    "no such axis from the end": lambda: optax_bridge.remove_axis(BOXED, -2, "embed"),
    "of a scalar": lambda: optax_bridge.remove_axis(nn.Partitioned(jnp.ones(()), ()), 0, "mlp"),  # type: ignore[arg-type]
    "no index": lambda: optax_bridge.remove_axis(BOXED, "1", "mlp"),  # type: ignore[arg-type]
    "no such parameter": lambda: param_axes.boxes_from_param_axes({}, AXES),
    "too few names": lambda: param_axes.boxes_from_param_axes({"kernel": jnp.ones((2, 3))}, SHORT),
    "boxed already": lambda: param_axes.boxes_from_param_axes(BOXED, AXES),
    "no mesh": lambda: optax_bridge.param_shardings(BOXED, "data"),  # type: ignore[arg-type]
    "no rule": lambda: optax_bridge.param_shardings(BOXED, mesh()),
    "no rule for a state": lambda: optax_bridge.opt_state_shardings(MASKED, BOXED, mesh()),
    "not divisible": lambda: optax_bridge.param_shardings(
        nn.Partitioned(jnp.ones((3, 8)), ("embed", "mlp")),
        mesh(),
        RULES,  # type: ignore[arg-type]
    ),
    "several axes of the mesh": lambda: optax_bridge.param_shardings(
        jnp.ones(12), mesh(), lambda *_: PartitionSpec(("data", "model"))
    ),
    "names of a variable": lambda: axis_metadata.names_of(VARIABLE),
    "names narrowed": lambda: axis_metadata.names_of(
        axis_metadata.with_axes(VARIABLE, axis_metadata.Reduced(jnp.ones((3, 1)), (1, None)))
    ),
    "nobody's axis": lambda: _unclear(),
}


def _unclear() -> Any:
    """A statistic whose axis no shape tells, of a step that cannot be traced alone."""

    def update(updates: Any, state: Any, params: Any = None, *, needed: Any) -> Any:
        raise AssertionError

    def init(params: Any) -> Any:
        return {"count": jnp.zeros([]), "rows": jax.tree.map(lambda p: jnp.zeros(4), params)}

    tx: Any = optax.GradientTransformationExtraArgs(init, update)  # type: ignore[arg-type]
    params = {"bias": jnp.ones(3), "w": nn.Partitioned(jnp.ones((4, 4)), ("a", "b"))}  # type: ignore[arg-type]
    state: Any = optax_bridge.with_axis_metadata(tx).init(params)
    return state["rows"]["w"].names


def test_10_wrong_ranks_and_wrong_names_are_refused_with_the_leaf(recorded: Any):
    recorded("axes.txt", CASES)
    plain = {"a": jnp.ones(2), "b": BOXED["dense"]["kernel"]}
    found = optax_bridge.remove_axis(plain, -1, "mlp")
    assert found["a"] is plain["a"] and found["b"].names == ("embed",)


class OldStyle(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        kernel = partitioning.param_with_axes(
            "kernel", nn.initializers.ones, (x.shape[-1], 4), axes=("embed", "mlp")
        )
        return x @ kernel, None


class OldStack(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        scanned = partitioning.scan_with_axes(
            OldStyle, variable_axes={"params": 0}, split_rngs={"params": True}, length=3,
            axis_name="layers", axes_collections=("params",),
        )  # fmt: skip
        return scanned(name="stack")(x)


def test_11_params_axes_become_boxes_and_back():
    variables = OldStack().init(jax.random.key(0), jnp.ones((2, 4)))
    boxed = param_axes.boxes_from_param_axes(variables["params"], variables["params_axes"])
    assert boxed["stack"]["kernel"].names == ("layers", "embed", "mlp")
    frozen = partitioning.get_axis_names(variables["params_axes"])
    again = param_axes.boxes_from_param_axes(variables["params"], frozen)
    assert again["stack"]["kernel"].names == ("layers", "embed", "mlp")
    params, axes = param_axes.param_axes_from_boxes(boxed)
    assert_equal(params, variables["params"])
    assert jax.tree.structure(axes) == jax.tree.structure(unfreeze(variables["params_axes"]))
    assert axes["stack"]["kernel_axes"].names == ("layers", "embed", "mlp")
    assert_equal(OldStack().apply({"params": params, "params_axes": axes}, jnp.ones((2, 4)))[0],
                 OldStack().apply(variables, jnp.ones((2, 4)))[0])  # fmt: skip
    more = {**variables["params"], "plain": jnp.ones(2)}
    assert param_axes.boxes_from_param_axes(more, frozen)["plain"] is more["plain"]


def test_paths_are_named_as_jax_names_them():
    class OfItsOwn:
        def __str__(self) -> str:
            return "[own]"

    path = (
        jax.tree_util.DictKey("a"), jax.tree_util.DictKey(3), jax.tree_util.GetAttrKey("b"),
        jax.tree_util.SequenceKey(1), jax.tree_util.FlattenedIndexKey(2), OfItsOwn(),
    )  # fmt: skip
    names = axis_metadata.key_names(path)
    assert names == tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
    assert names == ("a", "3", "b", "1", "2", "[own]")
    with axis_metadata.boxes_remembered({"a": BOXED["dense"]["kernel"]}):
        assert axis_metadata.is_box(axis_metadata.box_of(path[:1], RAW["dense"]["kernel"]))
        other = jnp.ones((2, 3))  # which a wrapper has reshaped
        assert axis_metadata.box_of(path[:1], other) is other


class Scaled(struct.PyTreeNode, meta.AxisMetadata[Any]):
    """A user's own box, which knows nothing of names."""

    value: Any
    sizes: tuple[Any, ...] = struct.field(pytree_node=False)

    def unbox(self) -> Any:
        return self.value

    def replace_boxed(self, val: Any) -> Any:
        return self.replace(value=val)

    def add_axis(self, index: int, params: Any) -> Any:
        return self.replace(sizes=(*self.sizes[:index], None, *self.sizes[index:]))

    def remove_axis(self, index: int, params: Any) -> Any:
        return self.replace(sizes=(*self.sizes[:index], *self.sizes[index + 1 :]))


class Keeping(Scaled):
    def keep_axes(self, axes: Any) -> Any:
        return self.replace(sizes=tuple(None if a is None else self.sizes[a] for a in axes))


@pytest.mark.parametrize("tx", ADAFACTORS.values(), ids=ADAFACTORS)
def test_boxes_of_a_users_own(tx: Any):
    for box in (Scaled, Keeping):
        params = {"w": box(RAW["dense"]["kernel"], ("a", "b")), "b": jnp.ones(3)}
        state = create(params, tx)
        factored = state.opt_state if hasattr(state.opt_state, "v_row") else state.opt_state[0]
        row = factored.v_row["w"]
        assert row.sizes == ("a",) if box is Keeping else isinstance(row, jax.Array)
        new = state.apply_gradients(grads=axis_metadata.unboxed(params))
        assert jax.tree.structure(new) == jax.tree.structure(state)


def test_add_axis_and_remove_axis_are_inverses_of_states_too():
    box = optax_bridge.FactoredPartitioned
    kernel = box(RAW["dense"]["kernel"], ("embed", "mlp"), roles=("row", "column"))
    column: Any = create(kernel, optax_bridge.adafactor(0.1)).opt_state.v_col
    assert (column.names, column.roles) == (("mlp",), ("column",))
    added = optax_bridge.add_axis(column, 0, "layers")
    assert added.names == ("layers", "mlp")
    back = optax_bridge.remove_axis(added, 0, "layers")
    assert jax.tree.structure(back) == jax.tree.structure(column)


def test_a_parameter_has_the_longest_path_that_fits():
    a, b = (nn.Partitioned(jnp.ones(4), (name,)) for name in "ab")  # type: ignore[arg-type]
    state: Any = create({"bias": a, "dense": {"bias": b}}, optax.sgd(0.1, momentum=0.9)).opt_state
    assert state[0].trace["dense"]["bias"].names == ("b",)
    assert paths_of({"a": None, "b": [1, {}]}, ("x",)) == [("x", "b", "0")]


def test_in_a_list_of_states_an_index_is_that_of_the_parameter():
    def init(params: Any) -> Any:
        return ([jnp.zeros_like(param) for param in params],)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        return updates, state

    tx = optax.GradientTransformation(init, update)
    params: Any = [nn.Partitioned(jnp.ones((4, 4)), names) for names in (("a", "b"), ("b", "a"))]
    state: Any = optax_bridge.with_axis_metadata(tx).init(params)
    assert [box.names for box in state[0]] == [("a", "b"), ("b", "a")]
    traces = optax.chain(optax.trace(0.9), optax.trace(0.9))  # as many as there are parameters
    state = optax_bridge.with_axis_metadata(traces).init(params)
    assert [box.names for each in state for box in each.trace] == [("a", "b"), ("b", "a")] * 2
    # MaskedState has a field of the first parameter's name.
    params = {"inner_state": params[0], "w": params[1]}
    masked = optax.masked(optax.trace(0.9), {"inner_state": True, "w": True})
    state = optax_bridge.with_axis_metadata(masked).init(params)
    assert state.inner_state.trace["w"].names == ("b", "a")

"""Adafactor by axis: shapes of the statistics, scanned against unrolled, and its errors."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.core import meta

import legacy_optim
import optax_bridge
from optax_bridge.correspondence import ENTRIES
from optax_bridge.optimizers.axis_roles import ROLE

P = nn.Partitioned
RULES = {"layers": "batch", "embed": "row", "heads": "column", "kv": "column", "mlp": "column"}


def array(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


def roles_in_a_box(kernel: Any, bias: Any) -> tuple[Any, Any]:
    box = optax_bridge.FactoredPartitioned
    params = {
        "kernel": box(kernel, ("layers", "embed", "mlp"), roles=("batch", "row", "column")),
        "bias": box(bias, ("layers", "mlp"), roles=("batch", "none")),
    }
    return optax_bridge.adafactor(0.1, momentum=0.9), params


def rules_by_name(kernel: Any, bias: Any) -> tuple[Any, Any]:
    rules = {name: RULES[name] for name in ("layers", "embed", "mlp")}
    params = {"kernel": P(kernel, ("layers", "embed", "mlp")), "bias": P(bias, ("layers", "mlp"))}
    return optax_bridge.adafactor(0.1, momentum=0.9, axis_rules=rules), params


def rules_by_path(kernel: Any, bias: Any) -> tuple[Any, Any]:
    rules = {"kernel$": ("batch", "row", "column"), "^bias": ("batch", "none")}
    tx = optax_bridge.adafactor(0.1, momentum=0.9, path_rules=rules)
    return tx, {"kernel": kernel, "bias": bias}


@pytest.mark.parametrize("configured", [roles_in_a_box, rules_by_name, rules_by_path])
def test_a_scanned_model_gets_the_updates_of_the_unrolled_one(configured: Any):
    """Of many layers theirs would be the largest axis; each must still stand for itself."""
    layers = 3
    tx, scanned = configured(array(layers, 6, 5), array(layers, 5, seed=1))
    unrolled_tx = optax_bridge.adafactor(0.1, momentum=0.9, min_dim_size_to_factor=2)
    raw = optax_bridge.unboxed(scanned)
    # By size the longer axis is the one that v_row is a mean over: column, here, is the shorter.
    unrolled: Any = [{"kernel": raw["kernel"][i].T, "bias": raw["bias"][i]} for i in range(layers)]
    state = optax_bridge.TrainState.create(apply_fn=None, params=scanned, tx=tx)
    alone = optax_bridge.TrainState.create(apply_fn=None, params=unrolled, tx=unrolled_tx)
    take = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))
    for step in range(4):
        grads = {"kernel": array(layers, 6, 5, seed=10 + step), "bias": array(layers, 5, seed=step)}
        state = take(state, grads)
        each = [{"kernel": grads["kernel"][i].T, "bias": grads["bias"][i]} for i in range(layers)]
        alone = take(alone, each)
    new: Any = optax_bridge.unboxed(state.params)
    layers_now: Any = alone.params
    for i, layer in enumerate(layers_now):
        for ours, theirs in (
            (new["kernel"][i].T, layer["kernel"]),
            (new["bias"][i], layer["bias"]),
        ):
            # The factors row * column round in the other order when transposed: a few ULP.
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * np.abs(theirs).max())


@pytest.mark.parametrize(
    ("shape", "roles", "flat"),
    [
        ((3, 4, 5), ("row", "row", "column"), (12, 5)),
        ((5, 3, 4), ("row", "column", "column"), (5, 12)),
    ],
)
def test_several_axes_of_a_role_are_one_axis(shape: Any, roles: Any, flat: Any):
    joined = optax_bridge.adafactor(0.1, path_rules={"": roles})
    matrix = optax_bridge.adafactor(0.1, path_rules={"": ("row", "column")})
    params, reshaped = array(*shape), array(*shape).reshape(flat)
    state, flat_state = joined.init(params), matrix.init(reshaped)
    for step in range(3):
        grads = array(*shape, seed=1 + step)
        params, state = joined.step(grads, state, params)
        reshaped, flat_state = matrix.step(grads.reshape(flat), flat_state, reshaped)
    # Means over the same numbers in another order.
    np.testing.assert_allclose(params.reshape(flat), reshaped, rtol=1e-5)
    for name in ("v_row", "v_col"):
        statistics, expected = getattr(state, name), getattr(flat_state, name)
        np.testing.assert_allclose(statistics.reshape(expected.shape), expected, rtol=1e-6)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_an_axis_that_comes_and_goes_leaves_the_roles(index: int):
    box = optax_bridge.FactoredPartitioned(array(2, 3), ("embed", "mlp"), roles=("row", "column"))
    for role in ("none", None):
        named = {meta.PARTITION_NAME: "layers"} | ({} if role is None else {ROLE: role})
        added = box.add_axis(index, named)
        assert added.names[index] == "layers"
        assert str(getattr(added.roles[index], "value", added.roles[index])) == (role or "batch")
        back = added.remove_axis(index, named)
        assert (back.names, back.roles) == (box.names, box.roles)


def test_with_roles_through_nn_scan():
    init = optax_bridge.with_roles(
        nn.initializers.lecun_normal(), ("embed", "mlp"), ("row", "column")
    )

    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.Dense(4, kernel_init=init, use_bias=False)(x), None

    def stack(metadata: Any) -> Any:
        metadata = {meta.PARTITION_NAME: "layers", **metadata}
        axes: Any = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        model = nn.scan(Layer, length=3, metadata_params=metadata, **axes)()
        return model.init(jax.random.key(0), jnp.ones((2, 4)), None)["params"]["Dense_0"]["kernel"]

    kernel = stack({})
    assert kernel.roles == ("batch", "row", "column")
    assert stack({ROLE: "none"}).roles == ("none", "row", "column")
    state: Any = optax_bridge.adafactor(0.1).init(kernel)
    assert state.v_row.names == ("layers", "embed")
    assert (state.v_row.roles, state.v_col.roles) == (("batch", "row"), ("batch", "column"))


KERNEL = {"kernel": P(jnp.ones((6, 4)), ("embed", "mlp"))}


BIG = {f"layer{i}": P(jnp.ones((2, 2)), (f"a{i}", None)) for i in range(2)}
BOX = optax_bridge.FactoredPartitioned
WRONG: dict[str, tuple[Any, Any]] = {
    "no rule": ({"axis_rules": {"embed": "row"}}, KERNEL),
    "no axis": ({"axis_rules": {"embed": "row", "mlp": "column", "heads": "column"}}, KERNEL),
    "names collide": (
        {"axis_rules": [("embed", "row"), ("mlp", "column"), ("embed", "none")]}, KERNEL,
    ),
    "wrong rank": ({"path_rules": {"kernel": ("row",)}}, KERNEL),
    "paths collide": (
        {"path_rules": {"ker": ("row", "column"), "nel": ("column", "row")}}, KERNEL,
    ),
    "row left over": ({"path_rules": {"kernel": ("row", "none")}}, KERNEL),
    "column left over": ({"path_rules": {"": ("batch", "column")}}, KERNEL),
    "columns of a bias": (
        {"axis_rules": {"mlp": "column"}}, {"bias": jnp.ones(4), "box": P(jnp.ones(4), ("mlp",))},
    ),
    "no parameter": ({"path_rules": {"bias": ("none",), "^ernel": ("row", "column")}}, KERNEL),
    "of several": ({"axis_rules": {"a0": "row", "a1": "row", "b": "row"}}, BIG),
    "path against name": (
        {"axis_rules": {"embed": "row", "mlp": "column"}, "path_rules": {"k": ("none", "row")}},
        KERNEL,
    ),
    "path against box": (
        {"path_rules": {"": ("none", "row")}},
        BOX(jnp.ones((2, 3)), ("a", "b"), roles=("row", "column")),
    ),
    **{
        f"{names} of {shape}": (
            {"axis_rules": {n: RULES[n] for n in names if n}}, P(jnp.ones(shape), names),
        )
        for names, shape in (
            (("layers", "embed", "heads", "kv"), (4, 12, 8, 3)),
            (("embed", "mlp"), (6, 4)),
            (("layers", "mlp"), (5, 3)),
            ((None, "embed", "mlp"), (3, 6, 4)),
        )
    },
    "rules that agree": (
        {"axis_rules": {"embed": "row", "mlp": "column"}, "path_rules": {"nel": ("row", "column")}},
        KERNEL,
    ),
    **{f"by size {size}": ({"min_dim_size_to_factor": size}, jnp.ones((4, 6))) for size in (4, 5)},
    "not at all": ({"min_dim_size_to_factor": 4, "factored": False}, jnp.ones((4, 6))),
    "by rules, not at all": (
        {"factored": False, "path_rules": {"": ("row", "column")}}, jnp.ones((4, 6)),
    ),
    "none, of a box": (
        {"as_in_t5x": True}, BOX(jnp.ones((200, 300)), ("a", "b"), roles=("none", "none")),
    ),
    "batch, as in T5X": (
        {"as_in_t5x": True, "path_rules": {"": ("batch", "none")}}, jnp.ones((150, 130)),
    ),
    "none, as in T5X": (
        {"as_in_t5x": True, "path_rules": {"": ("none", "none")}}, jnp.ones((150, 130)),
    ),
    "rows of three, as in T5X": (
        {"as_in_t5x": True, "path_rules": {"": ("row", "none", "column")}}, jnp.ones((2, 3, 4)),
    ),
    "no role of a box": ({}, BOX(jnp.ones((2, 3)), ("a", "b"), roles=("row", "col"))),
    "roles of a box": ({}, BOX(jnp.ones((2, 3)), ("a", "b"), roles=("row",))),
    "no role": ({"axis_rules": {"embed": "rows"}}, KERNEL),
    "a text": ({"path_rules": {"kernel": "row"}}, KERNEL),
    "no expression": ({"path_rules": {"(": ("row", "column")}}, KERNEL),
}  # fmt: skip


def test_errors_name_the_parameter_its_shape_and_its_axes(recorded: Any):
    def init(rules: Any, params: Any) -> str:
        state = optax_bridge.adafactor(0.1, **rules).init(params)
        return str(jax.tree.map(jnp.shape, optax_bridge.unboxed(state)))

    cases: dict[str, Any] = {n: lambda case=case: init(*case) for n, case in WRONG.items()}
    ones, names = jnp.ones, ("embed", "mlp")
    cases["a text of names"] = lambda: optax_bridge.with_roles(ones, "embed", ("row", "column"))
    cases["a text of roles"] = lambda: optax_bridge.with_roles(ones, names, "row")
    cases["no role of with_roles"] = lambda: optax_bridge.with_roles(ones, names, ("row", "r"))
    recorded("axis_roles.txt", cases)


def test_the_second_longest_axis_of_what_was_factored_says_from_which_length_on() -> None:
    init = legacy_optim.Adafactor(min_dim_size_to_factor=4, beta1=0.9).init_param_state
    params = map(array, (3, 5, 2), (8, 6, 9), (16, 7, 1))
    rows: Any = [((), p, vars(init(p))) for p in params] + [
        ((), 1.0, {"m": 0}),
        ((), array(3), None),
    ]
    infer: Any = ENTRIES["adafactor"].inferred
    momentum = {"factored": True, "beta1": 0.9, "dtype_momentum": jnp.float32}
    assert infer(rows[:1]) == {"min_dim_size_to_factor": 8, **momentum}
    assert infer(rows) == infer(rows[::-1]) == {"min_dim_size_to_factor": 6, **momentum}
    assert infer(rows[3:]) == {"factored": False}


def test_an_axis_without_a_name_is_of_no_role() -> None:
    kernel, rules = array(3, 6, 4), {"embed": "row", "mlp": "column"}
    updates = []
    for name, more in ((None, {}), ("heads", {"heads": "none"})):
        tx = optax_bridge.adafactor(0.1, axis_rules=rules | more)
        params: Any = P(kernel, (name, *rules))
        updates.append(optax_bridge.unboxed(tx.update(params, tx.init(params), params)[0]))
    np.testing.assert_array_equal(*updates)


def by_axis(learning_rate: Any = 0.1) -> Any:
    rules = {name: RULES[name] for name in ("layers", "embed", "mlp")}
    return optax_bridge.adafactor(learning_rate, axis_rules=rules)


def everything(path: str, value: Any) -> bool:
    del path, value
    return True


WITHIN = {
    "chain": lambda tx: optax.chain(optax.identity(), tx),
    "masked by a function": lambda tx: optax.masked(tx, optax_bridge.path_mask(everything)),
    "partition": lambda tx: optax.partition({"all": tx}, {"kernel": "all", "bias": "all"}),
    "MultiSteps": lambda tx: optax.MultiSteps(tx, 1),
    "apply_if_finite": lambda tx: optax.apply_if_finite(tx, 3),
    "inject_hyperparams": lambda tx: optax.inject_hyperparams(by_axis)(learning_rate=0.1),
    "chain of multi_optimizer": lambda tx: optax.chain(
        optax_bridge.multi_optimizer((optax_bridge.path_mask(everything), tx))
    ),
}


@pytest.mark.parametrize("within", WITHIN.values(), ids=WITHIN)
def test_axis_rules_hold_within_other_transformations(within: Any):
    # Square: which axis a statistic keeps cannot be told by its shape.
    params = {
        "kernel": P(array(3, 6, 6), ("layers", "embed", "mlp")),
        "bias": P(array(3, 6, seed=1), ("layers", "mlp")),
    }
    states = [
        optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
        for tx in (within(by_axis()), by_axis())
    ]
    for _ in range(2):
        states = [state.apply_gradients(grads=jax.tree.map(jnp.cos, params)) for state in states]
    for ours, alone in zip(*(jax.tree.leaves(state.params) for state in states), strict=True):
        # An update that is added gives the bits of a decrement that is subtracted; MultiSteps and
        # apply_if_finite compile the step, which may contract a product and a sum: 1 ULP a step.
        np.testing.assert_allclose(ours, alone, rtol=0, atol=2 * np.spacing(np.abs(alone).max()))
    names = {
        box.names
        for box in jax.tree.leaves(states[0].opt_state, is_leaf=lambda x: isinstance(x, P))
        if isinstance(box, P) and box.value.ndim == 2
    }
    assert names == {("layers", "embed"), ("layers", "mlp")}

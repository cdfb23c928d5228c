"""Legacy states to Optax states and back, in groups, chains and wrappers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.checkpoints.definitions import differing_in_t5x
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.states import (
    Kind,
    count_like,
    extract,
    fill,
    legacy_classes,
    rows_of,
    slots,
    unused_rows,
)

PARAMS = {
    "layers": {"kernel": jnp.arange(60.0).reshape(3, 4, 5) / 60},
    "table": jnp.arange(16.0).reshape(4, 4) / 16,
    "frozen": jnp.ones(3),
    "bias": jnp.ones(4),
}
GRADS = jax.tree.map(jnp.cos, PARAMS)
RULES = {"layers/kernel": ("batch", "row", "column")}


def ends(*names: str) -> Any:
    return optax_bridge.path_mask(lambda path, _: path.endswith(names))


def by_axis(**settings: Any) -> Any:
    return optax_bridge.adafactor(0.1, path_rules=RULES, momentum=0.9, **settings)


GROUPS = optax_bridge.multi_optimizer(
    (ends("kernel"), by_axis()),
    (ends("table"), optax_bridge.adafactor(0.1, min_dim_size_to_factor=2)),
    (ends("bias"), optax_bridge.multi_optimizer((True, optax_bridge.sgd(0.1)))),
)


@pytest.mark.parametrize("tx", [by_axis(), GROUPS], ids=["alone", "groups"])
def test_a_state_becomes_rows_and_back(tx: Any):
    _, state = tx.step(GRADS, tx.init(PARAMS), PARAMS)
    rows = extract(state, None)
    back = fill(jax.eval_shape(tx.init, PARAMS), rows, state.count)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    assert rows["layers", "kernel", "v_row"].shape == (3, 4)
    assert (("frozen", "v") in rows) == (tx is not GROUPS)


def test_what_has_no_rows_is_refused_but_for_counts_and_flags():
    finite: Any = optax.apply_if_finite(optax_bridge.adam(0.1), 2).init(PARAMS)
    assert extract(finite, None).keys() == extract(finite.inner_state, None).keys()
    tx = optax.chain(optax.scale_by_adam(), optax.ema(0.9))
    with pytest.raises(ValueError, match=r"\['0'\]\['mu'\].*besides"):
        extract(tx.init(PARAMS), None)


WRAPPED = {
    "steps": lambda tx: optax.MultiSteps(tx, 2).gradient_transformation(),
    "finite": lambda tx: optax.apply_if_finite(tx, 2),
    "masked": lambda tx: optax.masked(tx, True),
    "clipped": lambda tx: optax.chain(optax.clip(1.0), tx),
}


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_every_count_of_a_wrapped_state_is_the_number_of_steps(wrapped: str):
    tx = WRAPPED[wrapped](optax.adam(0.1))
    optimizer = legacy_optim.Adam(0.1).create(PARAMS).apply_gradient(GRADS).apply_gradient(GRADS)
    classified = slots(tx.init(PARAMS), rows_of(optimizer.state, PARAMS))
    counts = {slot.path for slot in classified if slot.kind is Kind.COUNT}
    assert counts and counts == {
        slot.path for slot in classified if slot.path[-1] in ("count", "gradient_step")
    }
    assert (wrapped == "steps") == any("gradient_step" in path for path in counts)
    assert {slot.within for slot in classified if "nu" in slot.path} == {NOT_NEGATIVE}


@pytest.mark.parametrize("step", [3, np.int64(3), jnp.asarray(3)], ids=["python", "numpy", "jax"])
def test_a_count_has_the_dtype_of_the_state(step: Any):
    count = count_like(step, np.zeros((), np.int16))
    assert (count.dtype, int(count)) == (np.int16, 3)
    if not isinstance(step, jax.Array):  # one for each of several devices
        assert count_like(step, np.zeros(2, np.int16)).tolist() == [3, 3]


def test_a_momentum_of_one_element_that_is_not_zero_is_no_placeholder():
    """Adafactor keeps one zero where it keeps nothing; a number there is a number."""
    fields = {"v_row": jnp.zeros(1), "v_col": jnp.zeros(1), "v": jnp.ones(1), "m": jnp.zeros(1)}
    rows = {("bias", name): value for name, value in fields.items()}
    assert unused_rows(rows, {("bias", "v")}) == []
    assert unused_rows(rows | {("bias", "m"): jnp.full(1, 0.5)}, {("bias", "v")}) == [("bias", "m")]


def test_a_momentum_after_the_step_is_scaled_has_the_other_sign():
    params = {"w": jnp.ones((2, 2))}
    optimizer = legacy_optim.LARS(0.1).create(params).apply_gradient(params)
    rows = rows_of(optimizer.state, params)
    for rate in (0.1, optax.constant_schedule(0.1)):
        state = fill(optax.lars(rate).init(params), rows, 1)
        traces: list[Any] = [item.trace for item in state if isinstance(item, optax.TraceState)]
        np.testing.assert_array_equal(traces[0]["w"], -rows["w", "momentum"])
        np.testing.assert_array_equal(extract(state, rows)["w", "momentum"], rows["w", "momentum"])


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: optax.adam(0.1), ["Adam"]),
        (lambda: optax.chain(optax.clip(1.0), optax.lamb(0.1)), ["LAMB"]),
        (lambda: optax_bridge.adabelief(0.1), ["AdaBelief"]),
        (lambda: optax_bridge.weight_norm(optax.adam(0.1)), ["WeightNorm", "Adam"]),
        (lambda: optax.named_chain(("a", optax.clip(1.0)), ("b", optax.adam(0.1))), ["Adam"]),
        (lambda: optax.partition({"a": optax.adam(0.1)}, {"w": "a"}), ["Adam"]),
    ],
    ids=["adam", "lamb", "adabelief", "weight_norm", "named_chain", "partition"],
)
def test_a_state_tells_whose_it_is(make: Any, names: list[str]):
    assert legacy_classes(make().init({"w": jnp.ones((2, 2))})) == names


SQUARE = {"kernel": jnp.arange(256.0).reshape(16, 16) / 256}
COLUMN_FIRST = {"kernel": ("column", "row")}


@pytest.mark.parametrize(
    ("rules", "min_size", "differing"),
    [
        (COLUMN_FIRST, 16, ["params['kernel']"]),  # of equally long axes, size takes the last
        ({"kernel": ("row", "column")}, 16, []),
        ({"kernel": ("row", "column")}, 128, ["params['kernel']"]),  # too small by size
        ({"kernel": ("batch", "none")}, 16, []),
    ],
)
def test_a_square_kernel_by_rules_is_not_what_t5x_has(rules: Any, min_size: int, differing: Any):
    settings: Any = {"path_rules": rules, "min_dim_size_to_factor": min_size}
    tx = optax_bridge.adafactor(0.1, **settings)
    as_in_t5x = optax_bridge.adafactor(0.1, **settings, as_in_t5x=True)
    for each in (tx, optax_bridge.multi_optimizer((True, tx))):
        assert differing_in_t5x(each, each.init(SQUARE), SQUARE) == differing
    assert not differing_in_t5x(as_in_t5x, as_in_t5x.init(SQUARE), SQUARE)
    if not differing:
        return
    by_size = optax_bridge.adafactor(0.1, min_dim_size_to_factor=min_size)
    left, right = (
        t.step(SQUARE, t.init(SQUARE), SQUARE)[0]["kernel"] for t in (as_in_t5x, by_size)
    )
    np.testing.assert_array_equal(left, right)

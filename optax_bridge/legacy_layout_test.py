"""Adafactor by axis, alone and in groups, in the layout that T5X saved it in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.legacy_layout import factored_otherwise_in_t5x, opt_state_of, param_states_of

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
def test_a_state_goes_into_the_legacy_layout_and_back(tx: Any):
    _, state = tx.step(GRADS, tx.init(PARAMS), PARAMS)
    rows = param_states_of(tx, state, PARAMS)
    template = jax.eval_shape(tx.init, PARAMS)
    back = opt_state_of(tx, template, PARAMS, rows, state.count)
    assert jax.tree.structure(back) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, back, state)
    assert rows["layers"]["kernel"]["v_row"].shape == (3, 4)
    assert (rows["frozen"] is None) == (tx is GROUPS)


def test_it_is_the_layout_that_flax_optim_has():
    definition = legacy_optim.Adafactor(0.1, min_dim_size_to_factor=2)
    optimizer = definition.create(PARAMS).apply_gradient(GRADS)
    tx: Any = optax_bridge.from_legacy(definition)
    _, state = tx.step(GRADS, tx.init(PARAMS), PARAMS)
    expected = optimizer.state.param_states["table"]
    rows = param_states_of(tx, state, PARAMS)["table"]
    for name in ("v_row", "v_col", "v", "m"):
        np.testing.assert_array_equal(rows[name], getattr(expected, name))


def test_what_has_no_legacy_layout_is_refused():
    tx = optax_bridge.weight_norm(optax_bridge.sgd(0.1))
    with pytest.raises(ValueError, match=r"WeightNormState, which has no legacy layout"):
        param_states_of(tx, tx.init(PARAMS), PARAMS)


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
    assert factored_otherwise_in_t5x(tx, SQUARE) == differing
    assert factored_otherwise_in_t5x(optax_bridge.multi_optimizer((True, tx)), SQUARE) == differing
    assert not factored_otherwise_in_t5x(as_in_t5x, SQUARE)
    if not differing:
        return
    by_size = optax_bridge.adafactor(0.1, min_dim_size_to_factor=min_size)
    left, right = (
        t.step(SQUARE, t.init(SQUARE), SQUARE)[0]["kernel"] for t in (as_in_t5x, by_size)
    )
    np.testing.assert_array_equal(left, right)

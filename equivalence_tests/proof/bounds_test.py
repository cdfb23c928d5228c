from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests.proof import ProofError, rounding_bound
from optax_bridge.legacy import to_optax

PARAMS = {"k": jnp.ones((8, 4))}
RANGES = {"params": (-1, 1), "grads": (-1, 1)}
PAIRS: dict[str, tuple[Any, Any, dict[str, tuple[float, float]]]] = {
    "adam": (
        legacy_optim.Adam(0.1, weight_decay=0.1),
        optax.adamw(0.1, weight_decay=0.1),
        {"grad_ema": (-1, 1), "grad_sq_ema": (0.1, 1)},
    ),
    "rmsprop": (
        legacy_optim.RMSProp(0.1),
        optax.rmsprop(0.1, decay=0.9, eps_in_sqrt=False),
        {"v": (0.1, 1)},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_no_run_is_beyond_the_bound(name: str):
    left, right, state = PAIRS[name]
    bound = rounding_bound(left, right, PARAMS, {**RANGES, **state}, count=20)
    assert 0 < bound.largest < 1e5
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(5):
        arrays = {
            key: jnp.asarray(rng.uniform(low, high, (8, 4)), jnp.float32)
            for key, (low, high) in {**RANGES, **state}.items()
        }
        params, grads = {"k": arrays.pop("params")}, {"k": arrays.pop("grads")}
        row = left.init_param_state(params["k"]).replace(**arrays)
        old = legacy_optim.Optimizer(
            left, legacy_optim.OptimizerState(jnp.asarray(20, jnp.int32), {"k": row}), params
        )
        _, opt_state = to_optax(old, exact=False)
        updates, _ = right.update(grads, opt_state, params)
        new: Any = optax.apply_updates(params, updates)
        apart = jnp.abs(old.apply_gradient(grads).target["k"] - new["k"])
        worst = max(worst, float(apart.max()))
    assert 0 < worst <= bound.absolute["params['k']"]


def test_what_is_identical_has_bound_0():
    bound = rounding_bound(legacy_optim.Momentum(0.1), optax.sgd(0.1, momentum=0.9), PARAMS, {})
    assert bound.largest == 0


def test_a_missing_range_is_named():
    with pytest.raises(ProofError, match=r"grad_sq_ema` has none; expected one for a piece"):
        rounding_bound(
            legacy_optim.Adam(0.1), optax.adam(0.1), PARAMS, {**RANGES, "grad_ema": (-1, 1)}
        )


def test_there_is_none_for_what_differs():
    with pytest.raises(ProofError, match="not proved equal: different"):
        rounding_bound(optax.sgd(0.1), optax.sgd(0.2), PARAMS, RANGES)


def test_a_division_by_zero_has_no_bound():
    found = rounding_bound(
        legacy_optim.RMSProp(0.1),
        optax.rmsprop(0.1, decay=0.9, eps_in_sqrt=False),
        jax.tree.map(lambda leaf: leaf[:1, :1], PARAMS),
        {**RANGES, "v": (0, 1)},
    )
    assert not np.isfinite(found.largest)

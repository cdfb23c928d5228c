"""What the entries say of half precision, measured again: public Optax beside the old API."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.correspondence import ENTRIES, UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.claim import HALF_BOUND, HALF_PRECISION, MARGIN
from optax_bridge.correspondence.recipe import build

STEPS = 100
# Gradients of usual size, of a size whose squares vanish, and all of these with nothing between.
SCALES = {"usual": [1.0], "tiny": [1e-4], "mixed": [1.0, 1e-3, 0.0, 10.0]}


def settings() -> list[Any]:
    """The suite's cases whose recipe of public Optax is said to be the same in a half precision."""
    cases = []
    for name, entry in ENTRIES.items():
        for index, case in enumerate(entry.cases):
            definition = entry.definition(case, case.learning_rate)
            try:
                choice = choose_recipe(definition, "optax")
            except UnsupportedSetting:
                continue
            for dtype in sorted(
                choice.dtypes.intersection(HALF_PRECISION if not choice.parts else ())
            ):
                cases.append(pytest.param(definition, dtype, id=f"{name}-{index}-{dtype}"))
    return cases


def distance(definition: legacy_optim.OptimizerDef, dtype: Any) -> float:
    """The largest distance of the parameters in 100 steps, in ULP of each tensor's scale."""
    rng = np.random.default_rng(0)
    params = {
        "kernel": jnp.asarray(rng.standard_normal((8, 3)), dtype),
        "zeros": jnp.zeros(3, dtype),
    }
    if dtype == "float16":  # whose squares overflow in sum
        params["large"] = jnp.asarray(10 * rng.standard_normal((64, 64)), dtype)
    made = build(choose_recipe(definition, "optax").call)
    state: Any = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=made)

    def step(carry: Any, grads: Any) -> Any:
        optimizer, state = carry
        optimizer, state = optimizer.apply_gradient(grads), state.apply_gradients(grads=grads)
        return (optimizer, state), (optimizer.target, state.params)

    run: Any = jax.jit(lambda grads: jax.lax.scan(step, (definition.create(params), state), grads))
    worst = 0.0
    for scales in SCALES.values():
        factors = np.resize(scales, STEPS)
        grads = {
            name: jnp.asarray((rng.standard_normal((*leaf.shape, STEPS)) * factors).T, dtype)
            for name, leaf in jax.tree.map(jnp.transpose, params).items()
        }
        _, sides = run(grads)
        worst = max(worst, *(_apart(sides[0][name], sides[1][name], dtype) for name in params))
    return worst


def _apart(old: Any, new: Any, dtype: Any) -> float:
    """The largest distance of two trajectories of an array, in ULP of its scale so far."""
    a, b = (np.asarray(side, np.float64).reshape(STEPS, -1) for side in (old, new))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return np.inf
    a, b = (np.where(np.isfinite(side), side, 0) for side in (a, b))
    size = np.maximum.accumulate(np.abs(a).max(1))
    unit = float(jnp.finfo(dtype).eps) * 2 ** np.floor(np.log2(np.maximum(size, 1e-30)))
    return (np.abs(a - b).max(1) / unit).max()


@pytest.mark.parametrize(("definition", "dtype"), settings())
def test_a_claim_holds_in_half_precision_where_it_says_so(definition: Any, dtype: str):
    evidence = choose_recipe(definition, "optax").claim.evidence[dtype]
    bound = 0 if evidence.how == "proved" else MARGIN * HALF_BOUND
    assert distance(definition, dtype) <= bound


APART = [
    legacy_optim.Adam(0.01),
    legacy_optim.AdaBelief(0.01),
    legacy_optim.Adadelta(0.1, weight_decay=0.01),
    legacy_optim.Adafactor(0.01),
    legacy_optim.RMSProp(0.01),
]


@pytest.mark.parametrize("number", range(len(APART)), ids=lambda n: type(APART[n]).__name__)
def test_where_a_claim_does_not_hold_the_two_do_part(number: int):
    """In one half precision or the other, by turns."""
    choice = choose_recipe(APART[number], "optax")
    assert not choice.dtypes.intersection(HALF_PRECISION)
    assert distance(APART[number], sorted(HALF_PRECISION)[number % 2]) > HALF_BOUND

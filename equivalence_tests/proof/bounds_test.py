from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests.proof import ProofError, rounding_bound
from equivalence_tests.proof.bits.graph import Graph
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.rounding.roundoff import Roundoff
from optax_bridge.correspondence import ENTRIES, Claim, UnsupportedSetting, choose_recipe
from optax_bridge.correspondence.recipe import build
from optax_bridge.legacy import to_optax

PARAMS = {"k": jnp.ones((8, 4))}
RANGES = {"params": (-1.0, 1.0), "grads": (-1.0, 1.0)}
Pair = tuple[Any, Any, dict[str, tuple[float, float]], int]
PAIRS: dict[str, Pair] = {
    "adam": (
        legacy_optim.Adam(0.01),
        optax.adam(0.01),
        {"grad_ema": (-1, 1), "grad_sq_ema": (0.01, 1)},
        1000,
    ),
    "adam that decays": (
        legacy_optim.Adam(0.1, weight_decay=0.1),
        optax.adamw(0.1, weight_decay=0.1),
        {"grad_ema": (-1, 1), "grad_sq_ema": (0.1, 1)},
        1,
    ),
    "adabelief": (
        legacy_optim.AdaBelief(0.1, eps=1e-8),
        optax.adabelief(0.1, eps=1e-8, eps_root=1e-8),
        {"grad_ema": (-1, 1), "grad_sq_ema": (0.1, 1)},
        20,
    ),
    "rmsprop": (
        legacy_optim.RMSProp(0.1),
        optax.rmsprop(0.1, decay=0.9, eps_in_sqrt=False),
        {"v": (0.1, 1)},
        20,
    ),
    "rmsprop centered": (
        legacy_optim.RMSProp(0.1, centered=True, eps=1e-3),
        optax.rmsprop(0.1, decay=0.9, eps=1e-3, eps_in_sqrt=False, centered=True),
        {"v": (2, 3), "mg": (-1, 1)},
        20,
    ),
    "adadelta": (
        legacy_optim.Adadelta(1.0),
        optax.adadelta(1.0, rho=0.9, eps=1e-6),
        {"sq_avg": (0.01, 1), "acc_delta": (0.0, 0.01)},
        20,
    ),
    "lars": (
        legacy_optim.LARS(1.0),
        optax.lars(1.0, weight_decay=0.0, trust_coefficient=0.001, eps=0.0),
        {"params": (0.1, 1), "grads": (0.1, 1), "momentum": (-0.01, 0.01)},
        20,
    ),
}


def _apart(name: str) -> Any:
    """How far a step of both takes parameters and states apart."""
    left, right, _, count = PAIRS[name]

    def ours(given: Mapping[str, Any]) -> Any:
        return _old(left, given, count).apply_gradient({"k": given["grads"]})

    def theirs(given: Mapping[str, Any]) -> Any:
        old = _old(left, given, count)
        _, opt_state = to_optax(old, exact=False)
        updates, opt_state = right.update({"k": given["grads"]}, opt_state, old.target)
        return optax.apply_updates(old.target, updates), opt_state

    @jax.jit
    @jax.vmap
    def apart(new: Any, other: Any) -> jax.Array:
        pairs = zip(jax.tree.leaves(_as_theirs(left, new)), jax.tree.leaves(other), strict=True)
        return jnp.stack([jnp.abs(a - b) for a, b in pairs if a.shape])

    first, second = jax.jit(jax.vmap(ours)), jax.jit(jax.vmap(theirs))
    return lambda given: apart(first(given), second(given))  # of many arrays at once


def _old(left: Any, given: Mapping[str, Any], count: int) -> legacy_optim.Optimizer:
    fields = {key: value for key, value in given.items() if key not in RANGES}
    row = left.init_param_state(given["params"]).replace(**fields)
    state = legacy_optim.OptimizerState(jnp.asarray(count, jnp.int32), {"k": row})
    return legacy_optim.Optimizer(left, state, {"k": given["params"]})


def _as_theirs(left: Any, new: Any) -> Any:
    _, opt_state = to_optax(new, exact=False)
    return new.target, opt_state


@pytest.mark.parametrize("name", PAIRS)
def test_no_run_is_beyond_the_bound(name: str):
    left, right, state, count = PAIRS[name]
    ranges = {**RANGES, **state}
    bound = rounding_bound(left, right, PARAMS, ranges, count=count)
    apart, rng = _apart(name), np.random.default_rng(0)
    lows, highs = (np.array(ends)[:, None] for ends in zip(*ranges.values(), strict=True))
    points = rng.uniform(lows, highs, (len(ranges), 256 * 32))
    worst = np.zeros(len(bound.absolute))
    for _ in range(12):  # the worst arrays of all go on, a little changed
        arrays = jnp.asarray(points.reshape(-1, 256, 8, 4), jnp.float32)
        seen = np.asarray(apart(dict(zip(ranges, arrays, strict=True)))).max(axis=(2, 3))
        worst = np.maximum(worst, seen.max(axis=0))
        order = np.argsort(-seen[:, 0])[:16].repeat(16)
        points = points.reshape(-1, 256, 32)[:, order].reshape(len(ranges), -1)
        points += rng.normal(size=points.shape) * (highs - lows) * rng.choice([1e-1, 1e-3, 1e-6])
        points = np.clip(points, lows, highs)
    limits = np.array(list(bound.absolute.values()))
    assert (worst <= limits).all(), (worst, limits)
    assert 0 < limits[0] < 4 * worst[0], (worst, limits)  # and it is not far below


def _claimed() -> Iterator[Any]:
    for name, entry in ENTRIES.items():
        for index, case in enumerate(entry.cases):
            definition = entry.definition(case, case.learning_rate)
            try:
                choice = choose_recipe(definition, "optax")
            except UnsupportedSetting:
                continue
            recipe, claim = choice.call, choice.claim
            if claim.step is not None and entry.parts is None:  # its parts have their own
                yield pytest.param(definition, recipe, claim, id=f"{name}-{index}")


@pytest.mark.parametrize(("definition", "recipe", "claim"), list(_claimed()))
def test_a_step_of_each_case_is_within_its_claim(definition: Any, recipe: Any, claim: Claim):
    assert claim.step is not None
    assert claim.ulp is not None
    found = rounding_bound(definition, build(recipe), PARAMS, claim.step.all_ranges, count=10_000)
    of_params = found.ulp["params['k']"]
    assert claim.step.ulp / 2.5 < of_params <= claim.step.ulp <= claim.ulp <= 100 * claim.step.ulp


def test_one_number_on_both_sides_has_no_error():
    # 1 - 0.999 ** 1 loses three digits, on both sides the same ones.
    left, right = legacy_optim.Adam(1e-3), optax.adam(1e-3)
    state = {"grad_ema": (0.1, 1), "grad_sq_ema": (0.1, 1)}
    found = rounding_bound(left, right, PARAMS, {**RANGES, **state}, count=1)
    assert found.largest < 2


def test_an_entry_is_not_taken_for_another():
    graph = Graph()
    leaf = graph.leaf("g", (4,), np.dtype(np.float32))
    program = jax.make_jaxpr(lambda g: g[:, None] * g[None, :])(jnp.ones(4))
    found = Roundoff(graph, programs.run(graph, program, [leaf]), frozenset(), {"g": (-1, 1)})
    assert list(found.box) == ["g at ['i0']", "g at ['i1']"]


def test_what_is_identical_has_bound_0():
    bound = rounding_bound(legacy_optim.Momentum(0.1), optax.sgd(0.1, momentum=0.9), PARAMS, {})
    assert bound.largest == 0


def test_a_missing_range_is_named():
    with pytest.raises(ProofError, match=r"grad_sq_ema` has none; expected one for a piece"):
        rounding_bound(
            legacy_optim.Adam(0.1), optax.adam(0.1), PARAMS, {**RANGES, "grad_ema": (-1, 1)}
        )


def test_a_range_has_a_least_and_a_largest_value():
    with pytest.raises(ProofError, match=r"ranges\['v'\]: expected the least .* found \(1, 0\)"):
        rounding_bound(*PAIRS["rmsprop"][:2], PARAMS, {**RANGES, "v": (1, 0)})


def test_there_is_none_for_what_differs():
    with pytest.raises(ProofError, match="not proved equal: different"):
        rounding_bound(optax.sgd(0.1), optax.sgd(0.2), PARAMS, RANGES)


def test_a_division_by_zero_has_no_bound():
    found = rounding_bound(
        legacy_optim.RMSProp(0.1, eps=0.0),
        optax.rmsprop(0.1, decay=0.9, eps=0.0, eps_in_sqrt=False),
        PARAMS,
        {**RANGES, "v": (0, 1)},
    )
    assert not np.isfinite(found.largest)
    assert "a denominator may be 0" in str(found)


def test_a_root_of_what_may_be_less_than_0_has_no_bound():
    left, right = PAIRS["rmsprop centered"][:2]
    found = rounding_bound(left, right, PARAMS, {**RANGES, "v": (0.5, 1), "mg": (-1, 1)})
    assert "params['k']: at most inf ULP" in str(found)
    assert "a root of what may be less than 0" in str(found)


@pytest.mark.parametrize(("dtype", "finite"), [("float16", False), ("bfloat16", True)])
def test_what_a_dtype_cannot_hold_has_no_bound(dtype: str, finite: bool):
    params = {"k": jnp.ones(4, dtype)}
    left = optax.stateless(lambda g, p: jax.tree.map(lambda a: a * a * 3, g))
    right = optax.stateless(lambda g, p: jax.tree.map(lambda a: a * 3 * a, g))
    ranges = {"params": (-1.0, 1.0), "grads": (0.0, 300.0)}
    found = rounding_bound(left, right, params, ranges)
    assert np.isfinite(found.largest) == finite

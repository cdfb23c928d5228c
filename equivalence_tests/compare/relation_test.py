"""States that are related: scaled, negated, counted from elsewhere, under each other's name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from equivalence_tests import Verdict, check_equivalence
from equivalence_tests.compare.relation import relations, relations_text

PARAMS = {"a": np.linspace(-1, 1, 3, dtype=np.float32)}


def moments(
    scale: float = 1.0,
    start: int = 0,
    names: tuple[str, str] = ("mu", "nu"),
    root: bool = False,
    late: float = 1.0,
) -> optax.GradientTransformation:
    """A step of two moments and a count, whose state may be held in other ways."""
    mu, nu = names

    def init(params: Any) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"count": jnp.asarray(start, jnp.int32), mu: zeros, nu: zeros}

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        first = jax.tree.map(lambda m, g: 0.9 * m + scale * g, state[mu], updates)
        old = jax.tree.map(jnp.square, state[nu]) if root else state[nu]
        second = jax.tree.map(lambda v, g: 0.99 * v + g * g, old, updates)
        rate = -0.01 / scale * jnp.where(state["count"] - start >= 150, late, 1.0)
        steps = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + 1e-6), first, second)
        kept = jax.tree.map(jnp.sqrt, second) if root else second
        return steps, {"count": state["count"] + 1, mu: first, nu: kept}

    return optax.GradientTransformation(init, update)


SAME = {
    "negated": (moments(scale=-1.0), "right = -1 x left at state[1]['mu']['a']"),
    "scaled": (moments(scale=8.0), "right = 8 x left at state[1]['mu']['a']"),
    "counted from 1": (moments(start=1), "right = left + 1 at state[1]['count']"),
    "renamed": (
        moments(names=("nu", "mu")),
        "right = left's state[1]['nu']['a'] at state[1]['mu']['a']",
    ),
}


@pytest.mark.parametrize("how", SAME, ids=str)
def test_a_state_that_is_held_otherwise_is_no_other_training(how: str):
    right, said = SAME[how]
    report = check_equivalence(moments(), right, PARAMS)
    assert report.verdict is Verdict.IDENTICAL, report
    assert "the parameters agree; the states are related: " in str(report) and said in str(report)
    factor = {"negated": -1.0, "scaled": 8.0}.get(how, 1.0)
    assert report.relations["state[1]['mu']['a']"].factor == factor
    assert report.as_dict()["states"]


@pytest.mark.parametrize("how", ["counted from 1", "renamed"])
def test_a_fault_is_found_whatever_the_state_is_held_as(how: str):
    given: Any = {"counted from 1": {"start": 1}, "renamed": {"names": ("nu", "mu")}}[how]
    report = check_equivalence(moments(), moments(late=1.001, **given), PARAMS)
    assert report.verdict is Verdict.DIFFERENT
    assert "the parameters agree" not in str(report)


def test_a_state_in_no_linear_relation_is_named_as_what_alone_differs():
    report = check_equivalence(moments(), moments(root=True), PARAMS, gradients="normal")
    assert report.verdict is Verdict.DIFFERENT
    assert "only the optimizer states differ: the parameters are " in str(report)


def test_sides_whose_parameters_differ_by_little_do_not_differ_in_their_states_alone():
    report = check_equivalence(optax.adam(0.1), optax.adam(0.1 * (1 + 1e-5)), PARAMS)
    assert report.verdict is Verdict.DIFFERENT
    assert "from step 1" in report.headline and "but not before" not in report.headline
    assert "only the optimizer states differ" not in str(report)


def test_states_are_related_leaf_by_leaf_or_not_at_all():
    trace = np.asarray([[0.5, -2.0], [1.5, 0.25]], np.float32)
    left = {"count": np.asarray([1, 2]), "mu": trace, "nu": trace}
    nan = np.where(trace == 0.25, np.nan, trace)

    def said(**other: np.ndarray) -> str | None:
        found = relations(left, left | other)
        return None if found is None else relations_text(found)

    assert said() == said(mu=trace * np.float32(1 + 2e-7)) == ""
    assert said(mu=trace * np.float32(1.004)) == "right = 1.004 x left at state['mu']"
    assert said(mu=-3 * trace, nu=10 * trace) == (
        "right = -3 x left at state['mu']; right = 10 x left at state['nu']"
    )
    assert said(mu=10 * trace, nu=10 * trace) == "right = 10 x left at state['mu'] and 1 more"
    assert relations(left | {"mu": nan}, left | {"mu": nan}) is not None
    uneven = np.where(trace < 0, 2, 3).astype(np.float32) * trace
    for other in (0 * trace, trace + np.float32(1e-3), uneven, nan, trace[:, :1]):
        assert said(mu=other) is None
    assert said(count=2 * left["count"]) is None
    steps = np.arange(3.0, dtype=np.float32)  # a constant is no counter, and a leaf is used once
    assert relations({"k": np.full(3, 2)}, {"k": np.full(3, 3)}) is None
    assert relations({"a": steps, "b": steps**2}, {"a": steps**3, "b": steps**3}) is None
    cubes = {"a": steps, "b": steps**2, "c": steps**3}
    twice = {"a": 2 * cubes["c"], "b": 3 * cubes["c"], "c": steps}  # c stands for a and for b
    assert relations(cubes, twice) is None
    one = {"a": steps, "b": steps**2}
    assert relations(one, {"a": 2 * steps**2, "b": steps}) is not None

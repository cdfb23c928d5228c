"""What float64 may excuse: rounding, and nothing that the dtype chooses."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests import Nature, Verdict, check_equivalence
from equivalence_tests.sides.adapt import as_side
from equivalence_tests.sides.in_float64 import is_same_in_float64
from optax_bridge.correspondence import ENTRIES

PARAMS = {
    "kernel": np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2),
    "bias": np.zeros(2, "f4"),
}


def only_in(dtype: Any, factor: float, tx: optax.GradientTransformation) -> Any:
    """The transformation with its step times a factor where the dtype is this one."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = tx.update(updates, state, params)
        scaled = jax.tree.map(lambda u: u * factor if u.dtype == dtype else u, updates)
        return scaled, state

    return optax.GradientTransformation(tx.init, update)


@pytest.mark.parametrize(
    ("dtype", "factor"), [(jnp.bfloat16, 1.05), (jnp.float16, 1.01), (jnp.float32, 1.001)]
)
def test_what_a_dtype_chooses_is_not_called_rounding(dtype: Any, factor: float):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
    wrong = only_in(dtype, factor, optax.sgd(0.01))
    report = check_equivalence(wrong, optax.sgd(0.01), params, gradients="normal", steps=48)
    assert report.nature is Nature.ALGORITHM or "judged by growth" in str(report)
    if dtype == jnp.float32:
        assert report.verdict is Verdict.DIFFERENT


def test_the_precision_of_one_number_is_rounding():
    """Legacy Adam takes its correction in bfloat16, Optax in float32: far apart, by rounding."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    report = check_equivalence(
        legacy_optim.Adam(1e-3), optax.adam(1e-3), params, gradients="all", steps=48
    )
    assert report.verdict is Verdict.DIFFERENT
    assert report.nature is Nature.ROUNDING


def _is_same(side: Any, params: Any = PARAMS) -> bool:
    """True if a side may run in float64."""
    return is_same_in_float64(as_side(side), params, (jax.tree.map(np.ones_like, params),))


def _stepping(leaf: Callable[[Any], Any]) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, params: jax.tree.map(leaf, updates))


def _summed(g: Any) -> Any:
    return jax.lax.fori_loop(0, 3, lambda i, x: x + g.sum(), jnp.zeros((), jnp.float32)) * g


OTHERS = {
    "random numbers": lambda g: g * jax.random.bernoulli(jax.random.key(0), 0.5, g.shape),
    "a carry of float32 by name": _summed,
    "float32 by name": lambda g: (g.astype(jnp.float32) / 3).astype(g.dtype),
    "by the name, in a branch": lambda g: jax.lax.cond(
        g.sum() > 0, lambda x: (x.astype(jnp.float32) / 3).astype(x.dtype), lambda x: x, g
    ),
    "another constant": lambda g: g * (0.1001 if g.dtype == jnp.float32 else 0.1),
    "another constant array": lambda g: g * np.full(g.shape[-1:], g.dtype.itemsize, g.dtype),
    "another operation": lambda g: jnp.abs(g) if g.dtype == jnp.float32 else -g,
    "one operation more": lambda g: -g if g.dtype == jnp.float32 else g,
    "the spacing of the dtype": lambda g: g / (g + jnp.finfo(g.dtype).eps),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_side_that_is_another_program_in_float64_is_not_known(name: str):
    assert not _is_same(_stepping(OTHERS[name]))
    report = check_equivalence(_stepping(OTHERS[name]), optax.sgd(0.1), PARAMS, steps=4)
    assert (report.verdict, report.wide) == (Verdict.DIFFERENT, None)
    assert "by growth alone: the left side's program is another one in float64" in str(report)


SAME = {
    "constants": lambda g: g * np.asarray([0.1, 0.2], np.float32)[: g.shape[-1]].astype(g.dtype),
    "a branch": lambda g: jax.lax.cond(g.sum() > 0, lambda x: x * 3, lambda x: x / 7, g),
    "a derivative of its own": lambda g: jax.nn.relu(g / 3) - jax.nn.softplus(g),
}


@pytest.mark.parametrize("name", SAME)
def test_a_side_that_is_the_same_program_in_float64_runs_there(name: str):
    assert _is_same(_stepping(SAME[name]))


@pytest.mark.parametrize("name", ENTRIES)
def test_old_optimizers_are_the_same_program_but_those_that_name_float32(name: str):
    entry = ENTRIES[name]
    definition = entry.definition(entry.cases[0], entry.cases[0].learning_rate)
    assert _is_same(definition) is (name not in ("adafactor",))


@pytest.mark.parametrize(
    ("of_float32", "is_same"), [(0.1, True), (0.1001, False), ((0.1,), False), (np.zeros(2), False)]
)
def test_a_first_state_that_the_dtype_chooses_is_another(of_float32: Any, is_same: bool):
    def init(params: Any) -> Any:
        dtype = params["bias"].dtype
        chosen = of_float32 if dtype == jnp.float32 else 0.1
        return jax.tree.map(lambda x: jnp.asarray(x, dtype), chosen)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda u: u * 0.5, updates), state

    assert _is_same(optax.GradientTransformation(init, update)) is is_same


def test_a_counter_that_becomes_float32_does_not_keep_the_float64_run_from_being_one():
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        rate = 0.1 / (1 - 0.999 ** (state + 1).astype(jnp.float32))
        return jax.tree.map(lambda g: (-rate * g).astype(g.dtype), updates), state + 1

    def init(params: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    right = optax.sgd(lambda count: 0.1 / (1 - 0.999 ** (count + 1)))
    report = check_equivalence(optax.GradientTransformation(init, update), right, PARAMS, steps=20)
    assert report.verdict is not Verdict.DIFFERENT, report


def test_of_a_plain_function_it_is_said_that_nothing_is_known():
    def step(grads: Any, state: Any, params: Any) -> Any:
        return {name: params[name] - 0.1 * (grads[name] * 1.0000001) for name in params}, state

    report = check_equivalence((lambda params: {}, step), optax.sgd(0.1), PARAMS, steps=4)
    assert "the left side, a plain function, does something else" in str(report)


def test_typed_keys_in_a_state_run_in_float64_as_well():
    def keyed(rate: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            scaled = jax.tree.map(lambda g: -g * rate(g), updates)
            return scaled, jax.random.split(state)[0]

        return optax.GradientTransformation(lambda params: jax.random.key(0), update)

    pair = keyed(lambda g: 0.1 / (1 + g * g)), keyed(lambda g: 1 / (10 + 10 * g * g))
    report = check_equivalence(*pair, PARAMS, steps=16)
    assert "decided in float64" in str(report)
    assert report.nature is Nature.ROUNDING

"""What float64 may excuse: rounding, and nothing that the dtype chooses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests import Nature, Verdict, check_equivalence
from equivalence_tests.sides.adapt import as_side
from equivalence_tests.sides.inputs import problems
from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.trajectory import trajectory
from equivalence_tests.sides.widened import _dtype, in_float64, wide, widen_side
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
    ("dtype", "factor", "stream"),
    [
        (jnp.bfloat16, 1.05, "normal"),
        (jnp.float16, 1.01, "poisoned"),
        (jnp.float32, 1.001, "all"),
    ],
)
def test_what_a_dtype_chooses_is_another_algorithm(dtype: Any, factor: float, stream: str):
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)
    wrong = only_in(dtype, factor, optax.sgd(0.01))
    report = check_equivalence(wrong, optax.sgd(0.01), params, gradients=stream, steps=48)
    assert report.verdict is Verdict.DIFFERENT
    assert report.nature is Nature.ALGORITHM


def test_the_precision_of_one_number_is_rounding():
    """Legacy Adam takes its correction in bfloat16, Optax in float32: far apart, by rounding."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    report = check_equivalence(
        legacy_optim.Adam(1e-3), optax.adam(1e-3), params, gradients="all", steps=48
    )
    assert report.verdict is Verdict.DIFFERENT
    assert report.nature is Nature.ROUNDING


@pytest.mark.parametrize("name", ["adafactor", "multi_optimizer"])
def test_a_widened_side_is_the_side_in_float64(name: str):
    """Where no branch hangs on the dtype, both ways to float64 give the same but for constants."""
    entry = ENTRIES[name]
    definition = entry.definition(entry.cases[0], entry.cases[0].learning_rate)
    grads = problems.gradients(PARAMS, 4, "normal")
    given = (jax.tree.map(lambda leaf: leaf[0], grads),)
    side = as_side(definition)
    run = widen_side(side, PARAMS, given)
    with float64():
        one, other = (trajectory(each, wide(PARAMS), (wide(grads),)) for each in (side, run))
    for a, b in zip(jax.tree.leaves(one["params"]), jax.tree.leaves(other["params"]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _scan(g: Any) -> Any:
    def step(carry: Any, row: Any) -> tuple[Any, Any]:
        return carry * 0.5 + row, carry + g[0]

    return jax.lax.scan(step, g[1], g, reverse=True)[1]


def _loop(g: Any) -> Any:
    limit = g[0] * 0 + 3
    return jax.lax.while_loop(
        lambda c: c[0] < limit, lambda c: (c[0] + 1, c[1] * 0.7 + g), (g[1] * 0, g)
    )[1]


def _rounded(g: Any) -> Any:
    return jax.lax.reduce_precision(g, exponent_bits=8, mantissa_bits=7)


PROGRAMS = {
    "scan": _scan,
    "while": _loop,
    "cond": lambda g: jax.lax.cond(g[0] > 0, lambda x: x * 3, lambda x: x / 7, g),
    "switch": lambda g: jax.lax.switch(
        jnp.int32(g[0] * 0 + 1), [jnp.negative, lambda x: x / 3, jnp.abs], g
    ),
    "constants": lambda g: g * np.asarray([0.1, 0.2, 0.3], np.float32),
    "reduce_precision": lambda g: g / 3 if g.dtype == jnp.float64 else _rounded(g / 3),
    "own derivative": lambda g: jax.nn.relu(g / 3) - jax.nn.softplus(g),
    "by the name of a dtype": lambda g: (g.astype(jnp.float32) / 3).astype(g.dtype),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_and_branches_are_widened(name: str):
    """In float64 all that a step computes is computed there, to all its digits."""
    program = PROGRAMS[name]
    leaf: Any = np.asarray([0.3, -1.7, 0.011], np.float32)
    tx = optax.GradientTransformation(
        lambda params: (), lambda updates, state, params=None: (program(updates), state)
    )
    run = widen_side(as_side(tx), leaf, (leaf,))
    with float64():
        found = trajectory(run, wide(leaf), (wide(leaf[None]),))["params"]
        expected = leaf.astype(np.float64) + np.asarray(program(jnp.asarray(leaf, jnp.float64)))
    tolerance = 1e-7 if name == "by the name of a dtype" else 1e-15
    assert found.dtype == np.float64
    np.testing.assert_allclose(found[0], expected, rtol=tolerance)


def test_what_means_nothing_in_float64_is_said():
    def noisy(updates: Any, state: Any, params: Any = None) -> Any:
        def leaf(u: Any) -> Any:
            return u * jax.random.bernoulli(jax.random.key(0), 0.5, u.shape)

        return jax.tree.map(leaf, updates), state

    side = optax.GradientTransformation(lambda params: (), noisy)
    report = check_equivalence(side, optax.sgd(0.1), PARAMS, steps=4)
    assert (report.verdict, report.wide) == (Verdict.DIFFERENT, None)
    assert "bitcast_convert_type has no meaning in another precision" in str(report)


def test_a_loop_whose_carry_is_float32_by_name_is_widened():
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        def summed(g: Any) -> Any:
            return jax.lax.fori_loop(0, 3, lambda i, x: x + g.sum(), jnp.zeros((), jnp.float32)) * g

        return jax.tree.map(summed, updates), state

    side = as_side(optax.GradientTransformation(lambda params: (), update))
    assert not in_float64(side, PARAMS, (jax.tree.map(np.ones_like, PARAMS),))[1]


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

    side = as_side(optax.GradientTransformation(init, update))
    given = (jax.tree.map(np.ones_like, PARAMS),)
    assert in_float64(side, PARAMS, given)[1] is is_same


def test_what_rounds_to_float32_by_name_is_not_the_same_in_float64():
    """As many steps as in bfloat16, and each of them of the same kind."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda u: (u.astype(jnp.float32) / 3).astype(u.dtype), updates), state

    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    side = as_side(optax.GradientTransformation(lambda params: (), update))
    assert not in_float64(side, params, (jax.tree.map(np.ones_like, params),))[1]


def test_a_program_that_is_the_same_in_both_runs_as_it_is():
    grads = jax.tree.map(np.ones_like, PARAMS)
    side = as_side(optax.adam(1e-3))
    assert in_float64(side, PARAMS, (grads,)) == (side, True)
    branching = as_side(only_in(jnp.float32, 2.0, optax.sgd(0.1)))
    assert not in_float64(branching, PARAMS, (grads,))[1]


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


def test_of_the_dtypes_those_of_floats_become_float64():
    for dtype in (np.dtype(np.float32), np.float16, jnp.bfloat16.dtype, float):
        assert _dtype(dtype) == np.float64
    odd = type("Odd", (), {"dtype": property(lambda self: 3)})
    for value in (np.dtype(np.int8), np.uint32, bool, odd, 3, "float32", None):
        assert _dtype(value) is value


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


def test_a_solver_is_said_to_have_no_float64_run():
    def solved(by: Any) -> Any:
        step = lambda g: -by(jnp.eye(2) * 3 + g @ g.T, g)  # noqa: E731
        return optax.stateless(lambda grads, params: jax.tree.map(step, grads))

    pair = solved(jnp.linalg.solve), solved(lambda a, b: jnp.linalg.inv(a) @ b)
    text = str(check_equivalence(*pair, {"k": np.ones((2, 2), np.float32)}, steps=8))
    assert "no float64 run" not in text or "custom_linear_solve holds programs of its own" in text

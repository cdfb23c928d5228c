"""The names of `jax.example_libraries.optimizers` that are no entries are what the table says."""

import re
from typing import Any

import jax
import jax.example_libraries.optimizers as example_libraries
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from optax_bridge.correspondence import JAX, choose_recipe, entries_by_class
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import build

# Name -> its arguments.
_SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"step_size": 0.1},
    "exponential_decay": {"step_size": 0.1, "decay_steps": 7, "decay_rate": 0.5},
    "inverse_time_decay": {"step_size": 0.1, "decay_steps": 7, "decay_rate": 0.5},
    "polynomial_decay": {
        "step_size": 0.1, "decay_steps": 7, "final_step_size": 0.01, "power": 2.0,
    },
    "piecewise_constant": {"boundaries": [3, 8], "values": [0.3, 0.2, 0.1]},
}  # fmt: skip


def _equal(name: str, arguments: dict[str, Any]) -> Any:
    """What the table says to write, evaluated."""
    text = JAX.without_entry[name]
    source = re.search(r"lambda .*?(?=,)|(?:optax\.\w+\(.*\))(?= is the same)", text)
    assert source is not None, text
    return eval(source[0], {"optax": optax, "jnp": jnp, **arguments})


@pytest.mark.parametrize("name", _SCHEDULES)
def test_schedules_are_optax_s_from_the_first_step_on(name: str):
    arguments = _SCHEDULES[name]
    theirs, ours = getattr(example_libraries, name)(**arguments), _equal(name, arguments)
    counts = range(12)
    rates = [float(theirs(count)) for count in counts]
    np.testing.assert_allclose([float(ours(count)) for count in counts], rates, rtol=2e-7)


def test_sm3_and_clipping_are_optax_s_but_for_rounding():
    tx: Any = _equal("sm3", {"momentum": 0.9, "step_size": 0.1})
    init, update, get_params = example_libraries.sm3(0.1, 0.9)
    params = {"kernel": jnp.linspace(-1, 1, 12).reshape(4, 3), "bias": jnp.ones(3)}
    theirs, state = init(params), tx.init(params)
    for count in range(5):
        grads = jax.tree.map(lambda p, c=count: jnp.cos(3 * p + c), params)
        grads["bias"] = grads["bias"].at[0].set(0)
        theirs = update(count, grads, theirs)
        updates, state = tx.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for left, right in zip(*map(jax.tree.leaves, (params, get_params(theirs))), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-6)
    clipped, _ = _equal("clip_grads", {"max_norm": 0.5}).update(params, optax.EmptyState())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        clipped,
        example_libraries.clip_grads(params, 0.5),
    )


def test_each_public_function_has_an_entry_or_a_remedy():
    public = {
        name
        for name, value in vars(example_libraries).items()
        if callable(value) and getattr(value, "__module__", "") == example_libraries.__name__
    }
    of_other_kinds = {name for name in public if name[0].isupper() or "optimizer" in name}
    assert public - of_other_kinds == {*entries_by_class(JAX), *JAX.without_entry}


def test_a_schedule_goes_in_as_it_is_and_the_old_name_is_read():
    schedule = example_libraries.inverse_time_decay(0.1, 7, 0.5)
    described = parse("jax.experimental.optimizers.adam(0.1)")
    definition = described.entry.legacy(schedule)
    exact, optax = (build(choose_recipe(definition, kind).call) for kind in ("exact", "auto"))
    params = {"w": jnp.linspace(-1, 1, 5)}
    (one, _), (other, _) = (tx.update(params, tx.init(params), params) for tx in (exact, optax))
    np.testing.assert_allclose(one["w"], other["w"], rtol=1e-5)
    with pytest.raises(ExpressionError, match="clip_grads: optax"):
        parse("optimizers.clip_grads(g, 1.0)")

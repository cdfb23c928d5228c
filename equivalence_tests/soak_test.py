"""Long runs, shortened: the same code in a few steps, and a difference is found where it is."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests import check_equivalence, soak
from equivalence_tests.compare import one_function
from equivalence_tests.sides import side as sides


@pytest.mark.parametrize(("entry", "kind"), [("adam", "decaying rate"), ("lamb", "half precision")])
def test_exact_follows_legacy(entry: str, kind: str):
    one = soak.run(entry, kind, steps=soak.PART + 200)
    assert (one.steps, one.first) == (soak.PART + 200, "")


def test_rounding_of_single_elements_is_laid_to_the_compiler_that_does_so(
    monkeypatch: pytest.MonkeyPatch,
):
    params = {"scalar": np.ones((), np.float32), "one": np.ones((1, 1), np.float32)}
    pair = legacy_optim.Adam(0.1), optax.adam(0.1)
    monkeypatch.setattr(one_function, "FIRST", (99, 0, 0))
    assert "as one function" not in str(check_equivalence(*pair, params, steps=20))
    monkeypatch.setattr(one_function, "FIRST", (0, 4, 0))
    assert "as one function" in str(check_equivalence(*pair, params, steps=20))
    more = params | {"two": np.ones(2, np.float32)}
    assert "as one function" not in str(check_equivalence(*pair, more, steps=20))
    other = str(check_equivalence(pair[0], optax.adam(0.2), params, steps=20))
    assert "as one function" not in other


def test_a_difference_is_named_with_its_step(monkeypatch: pytest.MonkeyPatch):
    exact = sides.exact

    def late(definition: Any) -> sides.Side:
        side = exact(definition)

        def step(state: Any, grads: Any, learning_rate: Any = None) -> Any:
            after = side.step(state, grads, learning_rate)
            doubled = after.replace(params={**after.params, "bias": 2 * after.params["bias"]})
            return jax.lax.cond(state.step == 1100, lambda: doubled, lambda: after)

        return replace(side, step=step)

    monkeypatch.setattr(soak.sides, "exact", late)
    one = soak.run("sgd", "decaying rate", steps=soak.PART + 200)
    assert one.steps == 1101
    assert "params['bias']" in one.first

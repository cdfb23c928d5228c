"""Long runs, shortened: the same code in a few steps, and a difference is found where it is."""

from dataclasses import replace
from typing import Any

import jax
import pytest

from equivalence_tests.sides import side as sides
from tools import soak


@pytest.mark.parametrize(("entry", "kind"), [("adam", "decaying rate"), ("lamb", "half precision")])
def test_exact_follows_legacy(entry: str, kind: str):
    one = soak.run(entry, kind, steps=soak.PART + 200)
    assert (one.steps, one.first) == (soak.PART + 200, "")


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

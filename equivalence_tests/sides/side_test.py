"""The sides of the suite show their states in the legacy layout."""

import numpy as np
import pytest

import legacy_optim
from equivalence_tests.sides.side import Side, exact, public_optax
from optax_bridge.correspondence import choose_recipe

PARAMS = {"w": np.ones(3, np.float32)}
ADAM = legacy_optim.Adam(0.1)


@pytest.mark.parametrize(
    "side",
    [exact(ADAM), public_optax(ADAM, choose_recipe(ADAM, "optax").call)],
    ids=["exact", "optax"],
)
def test_a_count_that_is_not_the_step_shows(side: Side):
    state = side.init(PARAMS)
    assert int(side.view(state)["state"].step) == 0
    assert int(side.view(state.replace(step=state.step + 1))["state"].step) == -1

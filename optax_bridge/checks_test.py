"""What is said where a definition is meant and something else is given."""

from typing import Any

import jax.numpy as jnp
import pytest

import legacy_optim
import optax_bridge

OPTIMIZER = legacy_optim.Adam(0.1).create({"w": jnp.ones(1)})
STATE = optax_bridge.TrainState.from_legacy(OPTIMIZER)
GIVEN: dict[str, tuple[Any, str]] = {
    "name": ("Adam", r"the string 'Adam'; is legacy_optim.Adam\(...\) meant\?"),
    "call-as-text": ("optim.adam(0.1)", r"is legacy_optim.Adam\(...\) meant\?"),
    "no-name": ("x", "the string 'x'$"),
    "class": (legacy_optim.LAMB, r"the class LAMB, not an instance: call it, legacy_optim.LAMB\("),
    "optimizer": (OPTIMIZER, "optimizer.optimizer_def"),
    "function": (optax_bridge.adam, r"the function adam; is legacy_optim.Adam\(...\) meant"),
    "state": (STATE, "a TrainState"),
    "transformation": (optax_bridge.adam(0.1), "an Optax transformation"),
    "number": (0.1, "float 0.1"),
}


def test_what_was_meant_is_said(subtests: pytest.Subtests):
    for case in GIVEN:
        with subtests.test(case):
            given, message = GIVEN[case]
            with pytest.raises(
                TypeError, match=f"^definition: expected a definition.*found.*{message}"
            ):
                optax_bridge.from_legacy(given)
            with pytest.raises(TypeError, match=f"^optimizer_def: .*{message}"):
                optax_bridge.convert_state(STATE, given)
            with pytest.raises(TypeError, match="definition: "):
                optax_bridge.wrap_definition(given)


@pytest.mark.parametrize("given", [legacy_optim.Adam(0.1), STATE], ids=["definition", "state"])
def test_an_optimizer_is_asked_for(given: Any):
    with pytest.raises(TypeError, match=r"^optimizer: expected an Optimizer.* found"):
        optax_bridge.TrainState.from_legacy(given)

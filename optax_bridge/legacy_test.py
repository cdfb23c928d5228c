"""What has no equal is refused with a reason."""

from typing import Any

import jax.numpy as jnp
import pytest

import legacy_optim
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.legacy import from_legacy, to_legacy


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda: legacy_optim.Adam(), "per call"),
        (lambda: legacy_optim.Adafactor(0.1, epsilon2=0.5), "epsilon2"),
        (lambda: legacy_optim.Adagrad(0.1), "eps outside the root"),
        (lambda: legacy_optim.LARS(0.1, weight_decay=0.1), "denominator"),
    ],
    ids=["no-rate", "epsilon2", "adagrad", "lars-decay"],
)
def test_settings_without_a_stock_equal_say_so(definition: Any, message: str):
    with pytest.raises(UnsupportedSetting, match=message):
        from_legacy(definition(), exact=False)


def test_parameters_that_the_state_was_not_made_for_are_named():
    definition = legacy_optim.Adam(0.1)
    state = from_legacy(definition).init({"w": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ValueError, match=r"opt_state's grad_ema: .* found \['b'\] besides. Pass"):
        to_legacy(definition, {"w": jnp.ones(2)}, state, 0)

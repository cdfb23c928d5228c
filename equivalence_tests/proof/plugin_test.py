from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import optax
import pytest

import legacy_optim

PARAMS = {"w": jnp.ones((2, 2))}


def test_what_is_proved_passes(assert_proved: Callable[..., Any]):
    proof = assert_proved(legacy_optim.Adam(0.1), optax.adam(0.1), PARAMS)
    assert proof.verdict == "equal over the reals"
    numbers = {"rate": 0.1}
    assert_proved(
        lambda hp: legacy_optim.Momentum(hp["rate"]),
        lambda hp: optax.sgd(hp["rate"], momentum=0.9),
        PARAMS,
        at_most="identical",
        hyper_params=numbers,
    )


def test_what_is_not_fails(assert_proved: Callable[..., Any]):
    message = r"(?s)^equal over.*\nexpected identical at most$"
    with pytest.raises(pytest.fail.Exception, match=message):
        assert_proved(legacy_optim.Adam(0.1), optax.adam(0.1), PARAMS, at_most="identical")
    with pytest.raises(pytest.fail.Exception, match="after step 1, params"):
        assert_proved(optax.sgd(0.1), optax.sgd(0.2), PARAMS)
    with pytest.raises(ValueError, match="at_most is 'rounding only'"):
        assert_proved(optax.sgd(0.1), optax.sgd(0.1), PARAMS, at_most="rounding only")

"""A proof for all numbers is of the program that the numbers get."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import optax
import pytest

from equivalence_tests import ProofError, prove_equivalence

HyperParams = Mapping[str, Any]
PARAMS = {"w": jnp.ones(3)}


def _sgd(hp: HyperParams) -> Any:
    return optax.sgd(hp["rate"])


def _prove(side: Callable[[HyperParams], Any], rate: float) -> str:
    return prove_equivalence(_sgd, side, PARAMS, hyper_params={"rate": rate}).verdict


def test_a_side_that_tells_numbers_from_symbols_is_refused():
    def by_type(hp: HyperParams) -> Any:
        return optax.sgd(2 * hp["rate"] if isinstance(hp["rate"], float) else hp["rate"])

    with pytest.raises(ProofError, match=r"right side .*another program than with symbols"):
        _prove(by_type, 0.1)


@pytest.mark.parametrize("rate", [0.0, 0.1, 1 - 1e-12, 1e30])
def test_what_is_the_same_with_numbers_is_not_refused(rate: float):
    def without_zero(hp: HyperParams) -> Any:
        return optax.sgd(hp["rate"]) if hp["rate"] else optax.set_to_zero()

    def by_halves(hp: HyperParams) -> Any:
        rest = 1 - hp["rate"]
        return optax.sgd(1 - rest)

    assert _prove(_sgd, rate) == "identical"
    assert _prove(without_zero, rate) in ("identical", "equal over the reals")
    if rate < 1:
        assert _prove(by_halves, rate) == "equal over the reals"


def test_a_number_that_is_asked_for_is_a_case_of_its_own_and_no_check_of_the_others():
    def asking(hp: HyperParams) -> Any:
        return optax.sgd(1 - hp["rate"]) if hp["rate"] != 0.1 else optax.sgd(5.0)

    proof = prove_equivalence(
        asking, lambda hp: optax.sgd(1 - hp["rate"]), PARAMS, hyper_params={"rate": 0.1}
    )
    assert [case.verdict for case in proof.cases] == ["identical", "different"]

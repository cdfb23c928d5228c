"""A pair's proof as the tests ask for it: with its certificate checked."""

from typing import Any

import jax.numpy as jnp

import optax_bridge
from equivalence_tests.proof.certificate.checker import check
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.reading.traced_sides import MakeSide
from equivalence_tests.proof.result import IDENTICAL, REALS, Proof
from equivalence_tests.sides.adapt import SideLike

PARAMS = {"b": jnp.ones(3), "k": jnp.ones((2, 3))}
NUMBERS = {"rate": 1e-3, "decay": 0.1}


def proved(
    left: SideLike | MakeSide, right: SideLike | MakeSide, verdict: str, **options: Any
) -> Proof:
    """The proof, whose certificate an independent evaluation agrees with."""
    proof = prove_equivalence(left, right, PARAMS, **options)
    assert proof.verdict == verdict, proof
    options.pop("relation", None)
    checked = check(proof.to_json(), left, right, PARAMS, points=1, **options)
    if verdict in (IDENTICAL, REALS):
        assert checked.values > 0
        assert verdict == REALS or checked.bits > 0
    return proof


def train_state(tx: Any, **options: Any) -> optax_bridge.FullTrainState:
    """A TrainState of the parameters."""
    return optax_bridge.FullTrainState.create(apply_fn=None, params=PARAMS, tx=tx, **options)

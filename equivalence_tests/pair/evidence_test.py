"""Runs and proof as one verdict: the weaker counts, and where they disagree is said."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests.pair.equivalence import check_equivalence
from equivalence_tests.pair.evidence import Evidence, prove_sides
from equivalence_tests.sides.side import Side
from optax_bridge.correspondence import Verdict

PARAMS = {"w": np.linspace(-1, 1, 5, dtype=np.float32)}
ADAM = (legacy_optim.Adam(0.1), optax.adam(0.1))
PAIRS: dict[str, Any] = {
    "identical": (optax.adam(0.1), optax.adam(0.1)),
    "rounding only": ADAM,
    "different": (optax.adam(0.1), optax.adam(0.2)),
    "not decided": tuple(
        optax.stateless_with_tree_map(lambda g, p, f=f: f(g))
        for f in (jnp.tan, lambda g: jnp.sin(g) / jnp.cos(g))
    ),
}


@functools.cache
def runs(case: str) -> Any:
    left, right = PAIRS[case]
    return check_equivalence(left, right, PARAMS, steps=5)


@functools.cache
def proof(case: str) -> Any:
    made, why = prove_sides(*PAIRS[case], params=PARAMS)
    assert made is not None, why
    return made


THE_WEAKER_OF_BOTH_COUNTS = [
    ("identical", "identical", "identical", "the same bits in the runs, and proved identical"),
    ("identical", "rounding only", "rounding only", "proved equal over the reals for all"),
    (
        *("rounding only", "rounding only", "rounding only"),
        "float32, for the leaves and under the assumptions that the proof lists",
    ),
    (
        "rounding only",
        "identical",
        "rounding only",
        "proved identical for all inputs in float32, for the leaves and under the assumptions",
    ),
    ("identical", "different", "different", "different: by proof"),
    ("different", "identical", "different", "different: in the runs"),
    ("different", "rounding only", "different", "different: in the runs"),
    ("different", "different", "different", "different: in the runs and by proof"),
    ("rounding only", None, "rounding only", "no other difference in the runs; not proved"),
    ("identical", None, "identical", "the same bits in the runs; not proved"),
    ("identical", "not decided", "identical", "the same bits in the runs; not proved"),
    ("different", None, "different", "different: in the runs"),
]


def test_the_weaker_of_both_counts(subtests: pytest.Subtests, recorded: Any):
    for ran, proved, verdict, headline in THE_WEAKER_OF_BOTH_COUNTS:
        with subtests.test(ran):
            evidence = Evidence(runs(ran), None if proved is None else proof(proved), "untraceable")
            assert evidence.verdict is Verdict(verdict)
            assert evidence.headline.startswith(f"{verdict}: ") and headline in evidence.headline
            text = f"{evidence.headline}\n{evidence.disagreement}"
            recorded("evidence.txt", {f"{ran}, {proved}": text}, some=True)
            agree = proved in (None, ran, "not decided") or (ran, proved) == (
                "identical",
                "rounding only",
            )
            assert bool(evidence.disagreement) is not agree
            assert ("proof: not tried: untraceable" in str(evidence)) is (proved is None)


def test_what_does_not_run_in_jax_is_not_proved():
    outside = Side("AdamW", lambda p: p, lambda s, g: s, lambda s: {"params": s}, compiled=False)
    made, why = prove_sides(outside, optax.sgd(0.1), params=PARAMS)
    assert made is None and "AdamW runs outside JAX" in why


def test_the_explanation_stands_below_the_verdict():
    evidence = Evidence(runs("different"), proof("different"), explanation="why")
    assert str(evidence).splitlines()[:2] == ["different: in the runs and by proof", "why"]
    assert evidence.as_dict()["explanation"] == "why"

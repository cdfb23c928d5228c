"""Which recipe stands for an optimizer, in which dtypes, and why no other."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
from optax_bridge.correspondence import ENTRIES, Choice, Verdict, choose_recipe
from optax_bridge.correspondence.claim import HALF_BOUND, HALF_PRECISION, by_measurement
from optax_bridge.correspondence.expression import parse
from optax_bridge.correspondence.recipe import render

FLOAT32 = {"float32"}
GROUPS = "MultiOptimizer(('*/kernel', Adam(0.1)), ('*/bias', Momentum(0.1)), (rest, LARS(1)))"
# Expression -> kinds of recipe and dtypes of parameters.
ASKED: dict[str, tuple[tuple[Any, Any], ...]] = {
    "Adam(0.1)": (
        *(("auto", dtypes) for dtypes in (None, FLOAT32, {"bfloat16"}, {"float64"}, "float16")),
        *(("exact", {"float16"}), ("optax", {"bfloat16"}), ("best", None), ("auto", ("int8", "x"))),
    ),
    "Adam()": (("auto", FLOAT32), ("optax", FLOAT32)),
    "Momentum(0.1, weight_decay=decay)": (("auto", None), ("optax", {"float16"})),
    "Adagrad(0.1)": (("auto", FLOAT32), ("optax", FLOAT32)),
    "RMSProp(0.1)": (("auto", {"bfloat16"}), ("optax", ("float16", "float64"))),
    "LARS(0.1)": (("auto", {"bfloat16"}), ("auto", ("bfloat16", "float16"))),
    "Adafactor(0.1)": (("auto", {"float64"}), ("optax", None)),
    "Adafactor(0.1, epsilon2=0.1)": (("auto", FLOAT32), ("optax", FLOAT32)),
    GROUPS: (("auto", FLOAT32), ("auto", None), ("exact", None), ("optax", {"bfloat16"})),
    "MultiOptimizer((rest, Adagrad(0.1)), ('*', WeightNorm(Momentum(1))))": (("auto", FLOAT32),),
    "WeightNorm(Momentum(0.1))": (
        *(("auto", FLOAT32), ("exact", None), ("optax", FLOAT32), ("optax", {"float16"})),
    ),
    "WeightNorm(Adagrad())": (("auto", FLOAT32), ("optax", FLOAT32)),
}


def shown(expression: str, recipe: Any, dtypes: Any) -> str:
    """A choice and those within it, whole."""

    def lines(choice: Choice) -> list[str]:
        claim = choice.claim
        own = [
            f"{choice.kind}: {render(choice.call)}",
            f"  {claim.verdict.value}, {claim.ulp} ULP: {claim.reason}",
            f"  in {', '.join(sorted(choice.dtypes))}: {choice.reason}",
        ]
        return own + [f"    {line}" for part in choice.parts for line in lines(part)]

    return "\n".join(lines(choose_recipe(parse(expression), recipe, dtypes)))


def test_which_recipe_is_chosen_and_why(recorded: Any):
    cases = {
        f"{recipe} for {text} in {dtypes}": (lambda asked=(text, recipe, dtypes): shown(*asked))
        for text, asked in ASKED.items()
        for recipe, dtypes in asked
    }
    recorded("choices.txt", cases)
    assert [by_measurement(ulp).holds for ulp in (HALF_BOUND, 1.5)] == [True, False]


@pytest.mark.parametrize("rate", [jnp.float32(0.1), np.float32(0.1)])
def test_a_hyper_parameter_that_is_an_array_lifts_half_precision_to_its_dtype(rate):
    choice = choose_recipe(legacy_optim.GradientDescent(rate))
    assert choice.kind == "exact" and "a hyper-parameter is an array" in choice.reason
    assert choose_recipe(legacy_optim.GradientDescent(rate), dtypes=FLOAT32).kind == "optax"
    assert choose_recipe(legacy_optim.Momentum(0.1, beta=np.full(2, 0.9))).kind == "exact"
    decayed = legacy_optim.Momentum(0.1, weight_decay=np.zeros(2))  # which may differ from 0
    assert choose_recipe(decayed, "optax").call.target == "optax.chain"


def test_a_class_of_ones_own_is_wrapped_whatever_is_asked_for():
    class Mine(legacy_optim.Momentum):
        pass

    for recipe in ("auto", "exact", "optax"):
        assert choose_recipe(Mine(0.1), recipe).kind == "exact"


def test_every_claim_says_of_both_half_precisions_whether_it_holds_and_how_that_is_known(
    subtests: pytest.Subtests,
):
    for name in ENTRIES:
        with subtests.test(str(name)):
            entry = ENTRIES[name]
            for claim in [variant.claim for variant in entry.optax] + [entry.around]:
                if claim.verdict is Verdict.DIFFERENT:
                    assert not claim.dtypes
                    continue
                assert set(claim.evidence) >= set(HALF_PRECISION)
                for evidence in claim.evidence.values():
                    assert evidence.how and evidence.how != "not measured"
                    if evidence.holds and evidence.how != "proved":
                        assert float(evidence.how.split()[1]) <= HALF_BOUND

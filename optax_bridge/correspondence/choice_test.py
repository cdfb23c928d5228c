"""Which recipe stands for an optimizer, in which dtypes, and why no other."""

import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
from optax_bridge.correspondence import ENTRIES, UnsupportedSetting, Verdict, choose_recipe
from optax_bridge.correspondence.claim import HALF_BOUND, HALF_PRECISION, by_measurement

FLOAT32 = {"float32"}


def test_half_precision_takes_the_exact_recipe_where_optax_parts_from_it():
    adam = legacy_optim.Adam(0.1)
    full, half, unknown = (choose_recipe(adam, dtypes=d) for d in (FLOAT32, {"bfloat16"}, None))
    assert (full.kind, full.call.target, full.reason) == ("optax", "optax.adam", "")
    assert (half.kind, half.call.target) == ("exact", "optax_bridge.adam")
    assert "in bfloat16: the legacy bias correction" in half.reason
    assert unknown.kind == "exact" and "float16" in unknown.reason
    assert [by_measurement(ulp).holds for ulp in (HALF_BOUND, 1.5)] == [True, False]


def test_what_is_the_same_in_every_dtype_is_optax_whatever_the_parameters_are():
    choice = choose_recipe(legacy_optim.Momentum(0.1, weight_decay=0.1))
    assert (choice.kind, choice.reason) == ("optax", "")
    assert choice.dtypes >= {"float32", *HALF_PRECISION}


@pytest.mark.parametrize("rate", [jnp.float32(0.1), np.float32(0.1)])
def test_a_hyper_parameter_that_is_an_array_lifts_half_precision_to_its_dtype(rate):
    choice = choose_recipe(legacy_optim.GradientDescent(rate))
    assert choice.kind == "exact" and "a hyper-parameter is an array" in choice.reason
    assert choose_recipe(legacy_optim.GradientDescent(rate), dtypes=FLOAT32).kind == "optax"
    assert choose_recipe(legacy_optim.Momentum(0.1, beta=np.full(2, 0.9))).kind == "exact"


def test_optax_is_taken_wherever_there_is_one_and_says_where_it_does_not_hold():
    choice = choose_recipe(legacy_optim.Adam(0.1), "optax", {"bfloat16"})
    assert choice.kind == "optax" and "bfloat16" not in choice.dtypes
    assert "in bfloat16" in choice.reason
    other = choose_recipe(legacy_optim.Adagrad(0.1), "optax", FLOAT32)
    assert other.claim.verdict is Verdict.DIFFERENT and not other.dtypes
    assert "another optimizer" in other.reason
    assert choose_recipe(legacy_optim.Adagrad(0.1), dtypes=FLOAT32).reason == other.reason
    with pytest.raises(UnsupportedSetting, match="epsilon2"):
        choose_recipe(legacy_optim.Adafactor(0.1, epsilon2=0.1), "optax")
    assert "epsilon2" in choose_recipe(legacy_optim.Adafactor(0.1, epsilon2=0.1)).reason


def test_exact_is_asked_for_and_holds_everywhere():
    choice = choose_recipe(legacy_optim.Adam(0.1), "exact")
    assert (choice.kind, choice.reason) == ("exact", "")
    assert choice.dtypes >= {"float32", *HALF_PRECISION}


def test_groups_choose_part_by_part_and_are_worth_the_weakest():
    kernels = legacy_optim.ModelParamTraversal(lambda path, _: "kernel" in path)
    rest = legacy_optim.ModelParamTraversal(lambda path, _: "kernel" not in path)
    groups = legacy_optim.MultiOptimizer(
        (kernels, legacy_optim.Adam(0.1)), (rest, legacy_optim.Momentum(0.1))
    )
    full, half = choose_recipe(groups, dtypes=FLOAT32), choose_recipe(groups)
    assert [part.kind for part in full.parts] == ["optax", "optax"]
    assert [part.kind for part in half.parts] == ["exact", "optax"]
    assert full.claim.verdict is Verdict.ROUNDING and full.dtypes == full.parts[0].dtypes
    assert full.claim.ulp == full.parts[0].claim.ulp
    assert half.claim.verdict is Verdict.IDENTICAL and "Adam" in half.reason
    assert half.kind == "optax" and half.dtypes == half.parts[1].dtypes
    assert choose_recipe(groups, "exact").kind == "exact"


def test_within_what_magnifies_rounding_all_are_exact():
    choice = choose_recipe(legacy_optim.WeightNorm(legacy_optim.Momentum(0.1)), dtypes=FLOAT32)
    assert choice.kind == "exact" and choice.dtypes >= {"float32", *HALF_PRECISION}
    assert choice.reason == "WeightNorm magnifies the rounding of public Optax within it"
    exact_within = legacy_optim.WeightNorm(legacy_optim.GradientDescent(0.1))
    assert "float16" in choose_recipe(exact_within.wrapped_optimizer, "optax").dtypes
    assert "float16" not in choose_recipe(exact_within, "optax").dtypes


def test_a_class_of_ones_own_is_wrapped_whatever_is_asked_for():
    class Mine(legacy_optim.Momentum):
        pass

    for recipe in ("auto", "exact", "optax"):
        assert choose_recipe(Mine(0.1), recipe).kind == "exact"


def test_another_kind_of_recipe_is_refused():
    with pytest.raises(ValueError, match="expected one of auto, exact, optax, found 'best'"):
        choose_recipe(legacy_optim.Adam(0.1), "best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"names of floating-point dtypes, .*int8"):
        choose_recipe(legacy_optim.Adam(0.1), dtypes={"float32", "int8"})


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

"""What a difference is made of, and what is said of it, for runs whose distances are known."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from equivalence_tests.compare.comparison import Comparison, compare
from equivalence_tests.compare.extent import poisoned_from
from equivalence_tests.compare.judgement import Judgement, Nature
from optax_bridge.correspondence import Verdict

ULP = 2.0**-23  # of float32, at 1


def apart(*ulps: float, dtype: type = np.float32) -> Comparison:
    """Runs that are so many units of float32 apart at each step, in any dtype."""
    left = np.ones((len(ulps), 2), dtype)
    right = left.copy()
    right[:, 0] += np.asarray(ulps) * ULP
    return compare({"params": left}, {"params": right})


@pytest.mark.parametrize(
    ("ulps", "expected"),
    [
        ((0, 0), Nature.NONE),
        ((1, 2, 4, 8), Nature.ROUNDING),
        ((16, 16), Nature.ROUNDING),
        ((0, 0, 17, 17), Nature.ALGORITHM),
        ((1, 32), Nature.ROUNDING),
        ((1, 33), Nature.ALGORITHM),
        ((1, np.inf), Nature.ALGORITHM),
    ],
    ids=str,
)
def test_without_float64_it_is_judged_by_its_growth(ulps: tuple[float, ...], expected: Nature):
    judgement = Judgement(apart(*ulps), Verdict.DIFFERENT, about_wide="another one there")
    assert judgement.nature is expected
    if any(ulps):
        assert judgement.explanation == (
            f"{expected.value}, judged by growth alone: another one there"
        )


def test_poison_begins_where_the_first_leaf_has_it():
    late, early = np.zeros((5, 2)), np.zeros((5, 2))
    late[3, 0], early[1, 1] = np.nan, -np.inf
    assert poisoned_from({"a": late, "b": early}) == {"": 1}
    assert poisoned_from({"a": late, "b": early}, ("a",)) == {"['a']": 3}
    assert poisoned_from({"a": np.zeros((5, 2))}) == {}


@pytest.mark.parametrize(
    ("ulps", "wide", "expected"),
    [
        ((1e4, 1e4), (1e-3, 1e-3), Nature.ROUNDING),  # less than halfway left of it
        ((1e4, 1e4), (1.0, 1.0), Nature.ALGORITHM),
        ((1e4, np.inf), (1e-3, 1e-3), Nature.ALGORITHM),
        ((1e4, 1e4), (1e-3, np.inf), Nature.ALGORITHM),
        ((1.0, 1.0), (1e-8, 1e-8), Nature.ROUNDING),  # a few units there as well
        ((1.0, 1.0), (1e-3, 1e-3), Nature.ALGORITHM),
    ],
    ids=str,
)
def test_float64_decides(ulps: tuple[float, ...], wide: tuple[float, ...], expected: Nature):
    found, there = apart(*ulps), apart(*wide, dtype=np.float64)
    judgement = Judgement(found, Verdict.DIFFERENT, wide=there, about_wide="for all numbers")
    assert judgement.nature is expected
    said = judgement.explanation
    assert said.startswith(f"{expected.value}, decided in float64: ")
    assert said.endswith(" (for all numbers)")
    is_little = expected is Nature.ALGORITHM and max(wide) <= 4
    assert ("or a constant that one side holds in float32" in said) is is_little


def test_the_signs_of_zeros_are_a_difference_and_rounding():
    zero = np.zeros((1, 2), np.float32)
    found = compare({"params": zero}, {"params": -zero})
    judgement = Judgement(found, Verdict.ROUNDING)
    assert judgement.nature is Nature.ROUNDING
    assert judgement.headline == "rounding only: the signs of zeros"


def test_of_what_poison_tells_apart_nothing_is_measured():
    """What is said is the distance before the first NaN among the inputs."""
    left, right = np.ones((3, 2), np.float32), np.ones((3, 2), np.float32)
    right[:, 0] += np.asarray([0, 64, 2.0**20], np.float32) * np.float32(ULP)
    for poisoned, largest in ((None, 1 / 9), ({"": 2}, 64 * ULP), ({"": 0}, 1 / 8)):
        found = compare({"params": left}, {"params": right}, poisoned=poisoned)
        said = Judgement(found, Verdict.DIFFERENT, wide=apart(0, 0, dtype=np.float64)).explanation
        assert f"{largest:.2g} of the scale, in float64 0" in said


def test_in_half_precision_a_difference_begins_where_it_can_be_seen():
    """256 ULP of bfloat16 are twice the scale: a sixteenth of it counts."""
    left: Any = np.ones((4, 2), ml_dtypes.bfloat16)
    apart = np.asarray([[0, 0], [1, 0], [16, 0], [200, 0]]) / 128
    right = left + apart.astype(ml_dtypes.bfloat16)
    found = compare({"params": left}, {"params": right})
    assert "from step 3" in Judgement(found, Verdict.DIFFERENT).headline


def test_what_poison_alone_tells_apart_is_said_to_be_that():
    """Rounding before it is not called another algorithm."""
    pair = []
    for dtype in (np.float32, np.float64):
        left = np.ones((3, 2), dtype)
        right = left.copy()
        right[1, 0] += np.finfo(dtype).eps
        right[2, 0] = np.nan
        pair.append(compare({"params": left}, {"params": right}, poisoned={"": 2}))
    said = Judgement(pair[0], Verdict.DIFFERENT, wide=pair[1]).explanation
    assert "another algorithm" in said
    assert "in how they handle a gradient that is not finite" in said
    assert "before it at most rounding, 1.2e-07 of the scale, in float64 2.2e-16" in said


def test_another_algorithm_before_poison_is_not_called_safe_before_it():
    """However small it is: only what float64 shows to be rounding is passed over."""

    def runs(dtype: type, apart: float) -> Comparison:
        left = np.ones((3, 2), dtype)
        right = left.copy()
        right[0, 0] += apart
        right[1:, 0] += 2 * apart
        right[2, 1] = np.nan
        return compare({"params": left}, {"params": right}, poisoned={"": 2})

    few = 100 * ULP
    found, same, less = runs(np.float32, few), runs(np.float64, few), runs(np.float64, few * ULP)
    assert Judgement(found, Verdict.DIFFERENT, wide=same).headline == (
        "different: params by 2.4e-05 of its scale (200 ULP), from step 1"
    )
    for wide in (less, None):  # without float64 the bound decides
        text = Judgement(found, Verdict.DIFFERENT, wide=wide).headline
        assert text.startswith("different, but not before a gradient that is not finite: ")
        assert text.endswith("from step 3; before it by at most 200 ULP")

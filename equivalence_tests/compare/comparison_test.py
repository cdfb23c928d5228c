"""The comparison: what counts as equal, how distances are measured, what is found first."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from equivalence_tests.compare.comparison import NOTICEABLE, compare
from optax_bridge.correspondence import Verdict
from optax_bridge.correspondence.claim import different, identical, rounding

ONE = np.float32(1)
ULP = np.float32(2**-23)  # spacing of float32 at 1


def trajectory(*steps: object, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {"params": np.asarray(steps, dtype)}


def test_equal_bits_are_identical_nan_and_infinity_included():
    values = ([1.0, np.nan, np.inf], [-np.inf, 0.0, 1e-45])
    found = compare(trajectory(*values), trajectory(*values))
    assert found.identical
    assert found.ulp == 0
    assert found.first is None


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_the_unit_is_the_spacing_at_the_tensors_scale(dtype: object):
    eps = float(ml_dtypes.finfo(dtype).eps)
    left = trajectory([1.0, 0.125], dtype=dtype)
    right = trajectory([1.0, 0.125 + eps / 4], dtype=dtype)
    assert compare(left, right).ulp == 0.25


def test_the_scale_is_the_largest_so_far():
    left = trajectory([8.0], [0.5])
    right = trajectory([8.0], [0.5 + ULP])
    assert compare(left, right).ulp == 1 / 8
    assert compare(right, left).ulp_by_step.tolist() == [0, 1 / 8]


def test_the_sides_can_change_places():
    left, right = trajectory([0.0, 1.0], [0.0, 1.0]), trajectory([0.5, 1.0], [1e6, 1.0])
    one, other = compare(left, right), compare(right, left)
    assert one.ulp_by_step.tolist() == other.ulp_by_step.tolist()
    assert one.relative == other.relative <= 2


def test_what_can_be_seen_is_not_rounding_only():
    half = ml_dtypes.bfloat16
    left = trajectory([1.0], dtype=half)
    near, far = (compare(left, trajectory([1 + n / 128], dtype=half)) for n in (8, 9))
    assert (near.ulp, near.within(NOTICEABLE)) == (8, Verdict.ROUNDING)
    assert (far.ulp, far.within(NOTICEABLE)) == (9, Verdict.DIFFERENT)


def test_a_tiny_tensor_is_held_to_its_own_scale_down_to_the_smallest_normal_number():
    tiny = np.float32(2.0**-100)
    assert compare(trajectory([tiny]), trajectory([tiny * (1 + 2 * ULP)])).ulp == 2
    denormal = np.float32(2.0**-140)
    assert compare(trajectory([denormal]), trajectory([2 * denormal])).ulp == 2.0**9


def test_the_worst_leaf_is_the_farthest():
    here, there = ({"a": trajectory([ONE]), "b": trajectory([x])} for x in (ONE, ONE + ULP))
    assert compare(here, there).worst_leaf == "b['params']"


def test_minus_zero_is_no_distance_but_not_identical():
    found = compare(trajectory([0.0]), trajectory([-0.0]))
    assert not found.identical
    assert found.ulp == 0


@pytest.mark.parametrize("other", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_on_one_side_is_infinitely_far(other: float):
    found = compare(trajectory([1.0]), trajectory([other]))
    assert found.ulp == np.inf
    assert found.verdict(rounding(1e9, "")) is Verdict.DIFFERENT


def test_the_first_difference_has_step_leaf_index_and_both_values():
    left = {"params": {"a": np.zeros((3, 2), np.float32), "b": np.zeros((3, 2, 2), np.float32)}}
    right = {name: {k: v.copy() for k, v in tree.items()} for name, tree in left.items()}
    right["params"]["a"][2] = 1
    right["params"]["b"][1, 0, 1] = 5
    first = compare(left, right).first
    assert first is not None
    assert (first.step, first.leaf, first.index) == (2, "params['b']", (0, 1))
    assert (first.left, first.right) == (0, 5)
    assert str(first) == "step 2, params['b'][0, 1]: 0 / 5"


def test_integers_are_equal_or_not():
    left, right = trajectory(1, 2, dtype=np.int32), trajectory(1, 3, dtype=np.int32)
    assert compare(left, right).ulp == np.inf
    assert compare(left, left).identical


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"params": np.zeros((1, 3), np.float32)}, r"params: shape \(1, 2\)"),
        ({"params": np.zeros((1, 2), np.float16)}, "params: dtype float32"),
        ({"state": np.zeros((1, 2), np.float32)}, "the right side lacks it"),
    ],
)
def test_trees_that_do_not_match_name_the_leaf(other: dict[str, np.ndarray], message: str):
    with pytest.raises(ValueError, match=message):
        compare({"params": np.zeros((1, 2), np.float32)}, other)


def test_verdicts_follow_the_claims_bound():
    found = compare(trajectory([ONE]), trajectory([ONE + 10 * ULP]))
    assert found.verdict(rounding(10, "")) is Verdict.ROUNDING
    assert found.verdict(rounding(9, "")) is Verdict.DIFFERENT
    assert found.verdict(identical()) is Verdict.ROUNDING
    far = compare(trajectory([ONE]), trajectory([ONE + 2 * NOTICEABLE * ULP]))
    assert far.verdict(different("")) is Verdict.DIFFERENT


def test_bounds_grow_with_the_length_beyond_100_steps():
    left, right = np.ones((200, 1), np.float32), np.full((200, 1), ONE + 3 * ULP)
    assert compare(left, right).verdict(rounding(2, "")) is Verdict.ROUNDING
    assert compare(left[:100], right[:100]).verdict(rounding(2, "")) is Verdict.DIFFERENT


def test_empty_leaves_and_no_leaves():
    assert compare({"a": np.zeros((4, 0))}, {"a": np.zeros((4, 0))}).identical
    assert compare({}, {}).identical

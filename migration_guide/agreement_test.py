"""The helper of the guide's pages fails where two results are not the same."""

import numpy as np
import pytest
from flax.core import FrozenDict

from migration_guide.agreement import agree

ONES = np.ones(3, np.float32)
NEXT = np.nextafter(ONES, [1, 1, 2], dtype=np.float32)  # the last alone


def test_it_says_that_every_bit_is_the_same_or_how_far_rounding_went(capsys):
    agree({"a": ONES, "b": [1.0]}, FrozenDict({"a": ONES, "b": [1.0]}))
    assert capsys.readouterr().out == "Same to the last bit: 4 numbers in 2 arrays.\n"
    agree([*ONES], [*NEXT], ulp=2)
    assert capsys.readouterr().out == (
        "Same but for rounding: 3 numbers in 1 array, at most 1 ULP apart.\n"
    )


OF_ROUNDING = {
    "ulp": (ONES, NEXT),
    "ulp of one": ({"a": ONES, "b": ONES}, {"a": ONES, "b": NEXT}),
    "sign of zero": (0 * ONES, -0.0 * ONES),
}
OF_ANOTHER_KIND = {
    "shape": (ONES, ONES[:2]),
    "dtype": (ONES, ONES.astype(np.float64)),
    "name": ({"a": ONES}, {"b": ONES}),
    "nan": (np.nan * ONES, np.nan * ONES),
    "one infinite": (ONES, np.inf * ONES),
    "one more": ({"a": ONES}, {"a": ONES, "b": ONES}),
    "no losses": ([], []),
    "no parameters": ({}, {}),
}


@pytest.mark.parametrize("case", OF_ROUNDING | OF_ANOTHER_KIND)
def test_it_fails_where_they_are_not_the_same(case):
    """Another kind fails under any bound, not only for its bits."""
    for ulp in (0,) if case in OF_ROUNDING else (0, np.inf):
        with pytest.raises(AssertionError):
            agree(*(OF_ROUNDING | OF_ANOTHER_KIND)[case], ulp=ulp)


def test_a_bound_is_a_bound():
    with pytest.raises(AssertionError, match=r"1 ULP apart, at most 0\.5 expected"):
        agree(ONES, NEXT, ulp=0.5)
    below = -np.nextafter(ONES, 0, dtype=np.float32)
    agree(below, -ONES, ulp=0.5)  # of the larger magnitude
    agree(-ONES, below, ulp=0.5)

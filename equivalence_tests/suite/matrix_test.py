"""The matrix as tests, one for each case; `--equivalence-full` runs all, else a slice."""

import functools
import unittest

import chex
import pytest
from parameterized import parameterized

from equivalence_tests.suite.matrix import axes
from equivalence_tests.suite.matrix.cases import MatrixCase, matrix, thinned
from equivalence_tests.suite.matrix.run import Legs, run_case
from optax_bridge.correspondence import Verdict

CASES = matrix()
# Cases of one program follow one another, so few are held.
_legs = functools.lru_cache(maxsize=2)(Legs)


def _test_name(case: MatrixCase) -> str:
    return f"test_{case}".replace("-", "__")


@pytest.mark.filterwarnings("ignore:Optimizer.replicate:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
class MatrixTest(unittest.TestCase):
    slice_of_tests = frozenset(map(_test_name, thinned(CASES)))

    @parameterized.expand(
        [(case,) for case in CASES],
        name_func=lambda function, number, param: _test_name(param.args[0]),
        doc_func=lambda function, number, param: str(param.args[0]),
    )
    def test(self, case: MatrixCase) -> None:
        result = run_case(case, _legs(case.program), keep=True)
        assert result.held, (str(case), result.note, result.comparison)
        assert result.comparison is not None
        assert result.comparison.leaves > 1
        # In half precision 1 - b2**t or epsilon may be 0, and a norm where gradients are sparse:
        # the genuine library divides 0 by 0 as well.
        halves = case.dtype in axes.HALVES or case.tree == "mixed-dtypes"
        if case.stream == "normal" and not halves and result.verdict is not Verdict.DIFFERENT:
            chex.assert_tree_all_finite(result.trajectory["params"])

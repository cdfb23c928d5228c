"""The matrix as tests, one for each case; `--equivalence-full` runs all, else a slice."""

import functools

import jax
import numpy as np
import pytest

from equivalence_tests.suite.matrix import axes
from equivalence_tests.suite.matrix.cases import MatrixCase, matrix
from equivalence_tests.suite.matrix.run import Legs, run_case
from optax_bridge.correspondence import Verdict

# The optimizer that stands for the others on an axis, where Adam does not show the most: every
# optimizer has the suite's checks.
EXAMPLE = {
    "resumed": "multi_optimizer", "stock": "momentum", "nnx": "momentum", "boxed": "lamb",
    "thousand": "sgd", "sharded": "lars",
}  # fmt: skip


def in_slice(case: MatrixCase) -> bool:
    """True for what a default test run affords: every value of every axis, on one optimizer."""
    is_example = case.entry == EXAMPLE.get(case.column, "adam") and case.setting == 0
    return is_example and (case.stream in ("mixture", "nan", "normal") or case.column == "free")


CASES = [
    pytest.param(case, id=str(case), marks=() if in_slice(case) else pytest.mark.full)
    for case in matrix()
]
# Cases of one program follow one another, so few are held.
_legs = functools.lru_cache(maxsize=2)(Legs)


@pytest.mark.filterwarnings("ignore:Optimizer.replicate:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
@pytest.mark.parametrize("case", CASES)
def test_matrix(case: MatrixCase):
    result = run_case(case, _legs(case.program))
    assert result.held, (str(case), result.note, result.comparison)
    assert result.comparison is not None
    assert result.comparison.leaves > 1
    # In half precision 1 - b2**t or epsilon may be 0, and a norm where gradients are sparse: the
    # genuine library divides 0 by 0 as well.
    halves = case.dtype in axes.HALVES or case.tree == "mixed-dtypes"
    if case.stream == "normal" and not halves and result.verdict is not Verdict.DIFFERENT:
        leaves = jax.tree.leaves(result.trajectory["params"])
        assert all(np.isfinite(leaf).all() for leaf in leaves)

"""The matrix: its tables linted, and a slice of its cases; `optax-bridge check --full` runs all.

Every value occurs, ids are unique, streams are what they say.
"""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from equivalence_tests.sides.trajectory import DRIVES
from equivalence_tests.suite.case import groups
from equivalence_tests.suite.matrix import axes
from equivalence_tests.suite.matrix.cases import MatrixCase, matrix
from equivalence_tests.suite.matrix.run import Legs, run_case
from optax_bridge.correspondence import ENTRIES, Verdict

ALL = matrix()
# The optimizer that stands for the others on an axis, where Adam does not show the most: every
# optimizer has the suite's checks.
EXAMPLE = {
    "resumed": "multi_optimizer", "optax": "momentum", "nnx": "momentum", "boxed": "lamb",
    "thousand": "sgd", "sharded": "lars",
}  # fmt: skip


def in_slice(case: MatrixCase) -> bool:
    """True for what a default test run affords: every value of every axis, on one optimizer."""
    is_example = case.entry == EXAMPLE.get(case.column, "adam") and case.setting == 0
    return is_example and (case.stream in ("mixture", "nan", "normal") or case.column == "free")


CASES = [pytest.param(case, id=str(case)) for case in ALL if in_slice(case)]
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


TABLES = {
    "entry": ENTRIES,
    "tree": axes.TREES,
    "dtype": axes.DTYPES,
    "rate": axes.RATES,
    "drive": DRIVES,
    "recipe": axes.RECIPES,
    "mode": axes.MODES,
    "stream": axes.STREAMS,
}


def test_each_case_has_an_id_of_its_own():
    assert len({str(case) for case in ALL}) == len(ALL)


@pytest.mark.parametrize("axis", TABLES)
def test_every_value_of_an_axis_is_in_the_matrix_and_in_the_slice(axis: str):
    assert {getattr(case, axis) for case in ALL} == set(TABLES[axis])
    if axis != "entry":
        assert {getattr(case, axis) for case in filter(in_slice, ALL)} == set(TABLES[axis])


def test_every_setting_of_every_entry_is_in_the_matrix():
    wanted = {(name, i) for name, entry in ENTRIES.items() for i in range(len(entry.cases))}
    assert {(case.entry, case.setting) for case in ALL} == wanted


@pytest.mark.parametrize("axis", ["tree", "dtype", "rate", "drive"])
def test_every_optimizer_meets_every_value_unless_there_is_a_reason(axis: str):
    met = {(case.entry, getattr(case, axis)) for case in ALL}
    excluded = {
        (name, value)
        for name, entry in ENTRIES.items()
        for value, reason in entry.excluded.items()
        if value in TABLES[axis] and reason
    }
    assert met | excluded == {(entry, value) for entry in ENTRIES for value in TABLES[axis]}
    assert not met & excluded


def test_every_field_of_a_case_is_an_axis_or_the_setting():
    assert {field.name for field in dataclasses.fields(MatrixCase)} == {*TABLES, "setting"}


def test_cases_share_programs():
    assert len(groups(ALL)) < len(ALL) / 5


@pytest.mark.parametrize("name", axes.TREES)
def test_a_tree_is_made_anew_and_has_the_dtype(name: str):
    tree = axes.parameters(name, "bfloat16")
    assert axes.parameters(name) is not axes.parameters(name)
    dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}
    assert dtypes == {"bfloat16"} or name == "mixed-dtypes"


@pytest.mark.parametrize("name", axes.STREAMS)
def test_a_stream_is_the_same_every_time_and_like_the_parameters(name: str):
    params = axes.parameters("ranks")
    first, second = axes.gradients(params, name), axes.gradients(params, name)
    for param, a, b in zip(*map(jax.tree.leaves, (params, first, second)), strict=True):
        assert a.shape == (axes.STEPS, *param.shape)
        assert a.dtype == param.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_poison_is_in_one_leaf_at_two_steps(name: str):
    leaves = jax.tree.leaves(axes.gradients(axes.parameters("ranks"), name))
    bad = [(i, tuple(np.argwhere(~np.isfinite(leaf))[:, 0])) for i, leaf in enumerate(leaves)]
    assert [found for found in bad if found[1]] == [(0, (axes.HALF + 1, axes.HALF + 2))]


def test_denormal_gradients_are_denormal():
    (leaf,) = jax.tree.leaves(axes.gradients({"a": np.ones(5, np.float32)}, "denormal"))
    assert 0 < np.abs(leaf).max() < np.finfo(np.float32).smallest_normal

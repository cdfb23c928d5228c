"""What is fed to optimizers is what it is said to be: a suite of easy inputs would find nothing."""

import itertools

import jax
import numpy as np
import pytest

from equivalence_tests.sides.inputs import problems
from equivalence_tests.sides.inputs.gradients import resolve


@pytest.mark.parametrize("dtypes", [("float32",), ("float32", "bfloat16"), ("float16",)], ids=str)
def test_the_odd_tree_has_every_rank_and_the_dtypes_asked_for(dtypes: tuple[str, ...]):
    tree = problems.odd_tree(dtypes=dtypes)
    leaves = jax.tree.leaves(tree)
    assert {np.ndim(leaf) for leaf in leaves} == set(range(6))
    assert {str(leaf.dtype) for leaf in leaves} == {"float32", *dtypes}
    for dtype in dtypes[1:]:
        assert {str(leaf.dtype) for leaf in jax.tree.leaves(tree[dtype])} == {dtype}
    assert [np.size(leaf) for leaf in leaves].count(0) == 1
    assert any(np.size(leaf) and not np.any(leaf) for leaf in leaves)
    again, other = (problems.odd_tree(seed, dtypes) for seed in (0, 1))
    jax.tree.map(np.testing.assert_array_equal, tree, again)
    assert not np.array_equal(tree["dense"]["kernel"], other["dense"]["kernel"])


def _steps(stream: str, steps: int = 64) -> np.ndarray:
    params = {"w": np.zeros((40, 5), np.float32), "b": np.zeros(3, np.float16)}
    grads = problems.gradients(params, steps, stream)
    assert (grads["b"].shape, grads["b"].dtype) == ((steps, 3), np.float16)
    return grads["w"].reshape(steps, -1)


@pytest.mark.parametrize("stream", ["hostile", "all"])
def test_hostile_gradients_are_of_every_kind_that_is_said(stream: str):
    numbers = _steps(stream)[:32].reshape(4, 8, -1)  # later ones of "all" are not finite
    is_normal = (np.arange(numbers.shape[-1]) % 3 == 2) & (stream == "all")
    assert stream != "all" or numbers[:, :, is_normal].std(axis=(0, 2)).min() > 0.9
    eighths = numbers[..., ~is_normal]
    tiny, zero, normal, sparse, small, large, negated, denormal = np.abs(eighths).swapaxes(0, 1)
    for kind, scale in ((tiny, 1e-6), (normal, 1), (small, 1e-20), (large, 1e6), (denormal, 1e-41)):
        assert 0.5 * scale < np.median(kind) < scale
    signs = np.signbit(eighths[:, 1])
    assert not zero.any() and signs.any() and not signs.all()
    assert 0.1 < np.mean(sparse > 0) < 0.3
    np.testing.assert_array_equal(eighths[:, 6], -eighths[:, 5])
    assert negated.all() and (denormal < np.finfo(np.float32).tiny).all()


def test_poison_comes_late_and_in_every_leaf():
    assert np.isfinite(_steps("normal")).all() and np.isfinite(_steps("hostile")).all()
    for stream, steps in (("poisoned", (32, 40, 48)), ("all", (60, 61, 62))):
        values = _steps(stream)
        orders = {tuple(map(str, values[list(steps), element])) for element in range(6)}
        assert orders == set(itertools.permutations(("inf", "-inf", "nan")))
        assert np.isfinite(values).sum() == values.size - 18
        few = problems.gradients({"b": np.zeros(3, np.float32)}, 64, stream)["b"][list(steps)]
        assert np.isfinite(few).sum(axis=1).tolist() == [1, 1, 1]
    assert np.isfinite(_steps("all", 8)).all() and np.isfinite(_steps("poisoned", 1)).all()


@pytest.mark.parametrize("shape", [(), (1,), (2,), (3,), (7,)])
def test_each_kind_of_poison_comes_first_in_a_run(shape: tuple[int, ...]):
    params = {"w": np.zeros(shape, np.float32)}
    firsts = set[str]()
    for order in (0, *problems.other_orders(params)):
        grads = problems.gradients(params, 16, "poisoned", first_order=order)["w"].reshape(16, -1)
        firsts |= set(map(str, grads[8][~np.isfinite(grads[8])]))
    assert firsts == {"inf", "-inf", "nan"}
    assert bool(problems.other_orders(params)) == (np.prod(shape) < 7)


@pytest.mark.parametrize("compact", [False, True])
def test_the_problem_has_all_streams(compact: bool):
    params, grads = problems.problem(16, compact=True) if compact else problems.problem(16)
    assert params.keys() == grads.keys() == set(problems.STREAMS) <= {*problems.NAMES}
    assert len(jax.tree.leaves(params["normal"])) == (3 if compact else 11)
    jax.tree.map(lambda p, g: np.testing.assert_equal(g.shape, (16, *p.shape)), params, grads)
    finite = {n: all(np.isfinite(g).all() for g in jax.tree.leaves(grads[n])) for n in grads}
    assert finite == {"normal": True, "hostile": True, "poisoned": False}


@pytest.mark.parametrize("steps", [1, 2, 5, 7, 8, 15, 16, 160])
@pytest.mark.parametrize("stream", problems.NAMES)
def test_what_is_said_of_a_stream_occurs_in_its_steps(stream: str, steps: int):
    (values,) = jax.tree.leaves(problems.gradients({"w": np.ones(6, np.float32)}, steps, stream))
    said = problems.description(stream, steps)
    assert ("infinities" in said) == np.isinf(values).any()
    assert ("NaN" in said) == np.isnan(values).any()
    assert ("denormal" in said) == ((values != 0) & (abs(values) < 1e-38)).any()
    assert ("1e-20" in said) == (abs(values[values != 0]) < 1e-15).any()
    assert ("1e6" in said) == (abs(values[np.isfinite(values)]) > 1e4).any()


def test_the_rate_warms_up_and_decays_to_a_tenth():
    rate = problems.schedule(2.0, 100)
    assert rate.dtype == np.float32 and rate.argmax() in range(8, 12)
    assert (np.diff(rate[:9]) > 0).all() and (np.diff(rate[12:]) < 0).all()
    np.testing.assert_allclose([rate[0], rate.max(), rate[-1]], [0.2, 1.95, 0.2], rtol=0.03)
    assert problems.schedule(2.0, 1).tolist() == [2.0]


def test_a_list_of_gradients_is_given_in_its_order():
    rows = [{"w": np.full(2, step, np.float32)} for step in range(3)]
    for given in (rows, iter(rows)):
        stream, steps = resolve(given, rows[0], 3)
        assert [stream(step, rows[0])["w"][0] for step in range(steps)] == [0, 1, 2]

"""The benchmarks run and say what they are asked; how fast anything is, is no matter for a test."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import (
    cpu_step,
    figures,
    problem,
    programs,
    results,
    run,
    step_time,
    timing,
    torch_fused,
)
from benchmarks.figures import Figure, NotRun
from benchmarks.timing import Spread
from equivalence_tests.suite.jobs import Compilations
from optax_bridge.cli import app
from optax_bridge.correspondence import ENTRIES
from optax_bridge.exact import one_loop


def bench(*arguments: str | Path):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)])


def test_all_of_it_runs_quickly_and_is_written(tmp_path: Path):
    first, page = tmp_path / "first.json", tmp_path / "RESULTS.md"
    done = bench("--quick", "--json", first, "--results", page)
    assert done.exit_code == 0, done.output
    content = json.loads(first.read_text())
    assert content["quick"] and content["machine"]["versions"]["jax"] == jax.__version__
    found = figures.from_rows(content["figures"])
    assert {outcome.section for outcome in found} == {
        "step time", "growth", "memory", "start", "tools", "CPU step", "GPU",
    }  # fmt: skip
    measured = [outcome for outcome in found if isinstance(outcome, Figure)]
    for figure in measured:
        assert 0 < figure.ratio.low <= figure.ratio.median <= figure.ratio.high, figure
    whats = {figure.what for figure in measured if figure.section == "step time"}
    assert {"exact / legacy", "exact / stock", "exact / memory"} <= whats
    assert all(figure.bar is None for figure in measured)  # nobody can tell in so short a time
    assert "a quick run is held to no bar" in done.output and "above" not in done.output
    text = page.read_text()
    assert "no figure is held to a bar" in text and "Nothing is above" not in text
    assert text.count("\n| ") >= len(measured)
    assert all(f"not run: {o.subject}" in text for o in found if isinstance(o, NotRun))
    assert (tmp_path / results.PICTURE).read_text().count("<circle") == len(measured)


def test_nothing_comes_from_the_compilation_cache():
    x, compilations = jnp.ones(3), Compilations()

    def compiled() -> int:
        before = compilations.compiled
        jax.jit(lambda x: x * 3 + 1).lower(x).compile()
        return compilations.compiled - before

    compiled()  # from now on it is kept, and JAX has looked at its flags
    assert compiled() == 0
    with run.compiling_for_real():
        assert compiled() == 1
    assert compiled() == 0


def figure(median: float, spread: float = 0.01) -> Figure:
    ratio = Spread(median, median - spread, median + spread)
    return Figure("step time", "adam | x", "exact / stock", ratio, 2.0, bar=1.02, note="a note")


def test_another_run_is_compared_within_the_spread(tmp_path: Path):
    assert results.changes([figure(1.0)], [figure(1.015)]) == []
    (line,) = results.changes([figure(1.2)], [figure(1.0)])
    assert line.startswith("slower: adam | x: exact / stock: 1.20 (1.19 to 1.21), was 1.00")
    (line,) = results.changes([figure(0.8)], [figure(1.0), NotRun("GPU", "x", "none")])
    assert line.startswith("faster")
    file = tmp_path / "run.json"
    rows = figures.as_rows([figure(1.0), NotRun("GPU", "x", "none here")])
    file.write_text(json.dumps({"figures": rows}))
    assert figures.from_rows(rows) == [figure(1.0), NotRun("GPU", "x", "none here")]
    done = bench("--only", "gpu", "--compare", file)
    assert done.exit_code == 0 and "nothing changed beyond the spread" in done.output


def test_a_bar_is_broken_where_all_of_the_interval_is_above_it_and_the_work_is_not_the_same():
    assert figure(1.025).kept and not figure(1.1).kept
    assert replace(figure(1.1), same_work=True, work="the same loops").kept
    page = results.markdown([figure(1.1)], {**results.machine()}, 60)
    assert (
        "| adam \\| x | exact / stock | 1.10 (1.09 to 1.11) | 1.02 | 2 ms | **above**; a note |"
        in page
    )
    assert "| step time | 1 | 1 | 1 | 0 | 0 |" in page
    assert "- 1 of 1.10: not explained. adam \\| x (exact / stock)" in page
    adam = replace(figure(1.1), subject="adam, 1 x 1, bfloat16")
    (line,) = [x for x in results.markdown([adam], results.machine(), 60).splitlines()
               if x.startswith("- 1 of 1.10: ")]  # fmt: skip
    assert "the decay is 0" in line


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "stepp"], "no measurement is called stepp; there are step, growth"),
        (["--json", "/no/such/folder/x.json"], "/no/such/folder does not exist"),
        (["--compare", "/no/such/file"], "expected a file written by `optax-bridge bench --json`"),
    ],
    ids=["unknown", "no folder", "no file"],
)
def test_misuse_is_said(arguments: list[str], said: str):
    done = bench(*arguments)
    assert done.exit_code == run.MISUSE
    assert said in done.output


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_every_optimizer_has_sides_that_can_be_measured(entry):
    names = [side.name for side in step_time.sides_of(entry)]
    assert names[:2] == ["legacy", "exact"]
    assert not entry.stock or names[2:] == ["stock"]


def test_the_standard_trees_are_of_the_sizes_that_the_readme_names():
    shapes = {name: jax.eval_shape(make) for name, make in problem.TREES.items()
              if name != "transformer"}  # fmt: skip
    assert problem.size(shapes["16 x 1024x1024"]) == 2**24
    assert problem.size(shapes["400 x 64x64"]) == 400 * 2**12
    assert problem.tree(problem.QUICK_TREE, "bfloat16")["leaf_00000"].dtype == jnp.bfloat16


def test_programs_are_the_same_by_what_their_loops_read_write_and_do():
    def work(function, count: int = 64):
        x = jnp.ones((count,))
        return programs.work_of(jax.jit(function).lower(x, x).compile())

    one = work(lambda x, y: 3 * x + y)
    assert programs.compared(one, work(lambda a, b: a - 0.5 * b)) == (True, "the same loops")
    same, said = programs.compared(one, work(lambda x, y: jnp.sqrt(3 * x + y)))
    assert not same and said == "bytes 1.00, operations 0.67, less sqrt"
    assert not programs.compared(one, work(lambda x, y: 3 * x + y, 65))[0]
    rounded = work(lambda x, y: (x.astype(jnp.bfloat16) * y.astype(jnp.bfloat16)) + x)
    assert "less conversions to bf16" in programs.compared(one, rounded)[1]


@pytest.mark.parametrize("entry", ["adam", "weight_norm"])
def test_the_exact_recipe_is_the_program_of_the_old_api(entry: str):
    # Of several leaves: what they share XLA compiles otherwise.
    made = step_time.steppers(ENTRIES[entry], problem.equal_leaves(3, 16, 8))
    legacy, exact = (programs.work_of(made[name].program) for name in ("legacy", "exact"))
    assert exact.loops and programs.compared(exact, legacy) == (True, "the same loops")


@pytest.mark.parametrize("name", cpu_step.VARIANTS)
def test_every_variant_is_the_same_arithmetic(name: str, monkeypatch: pytest.MonkeyPatch):
    if name.startswith("one_loop") and not one_loop.keeps_bits():
        pytest.skip("this JAX joins other loops: one_loop refuses it")
    monkeypatch.setenv("XLA_FLAGS", cpu_step.MULTI_OUTPUT)  # only said, for one_loop
    monkeypatch.setattr(cpu_step, "BLOCK", 8)
    params = problem.equal_leaves(3, 4, 2)
    grads = problem.gradients(params)
    ends = []
    for variant in (cpu_step.VARIANTS["as it is"], cpu_step.VARIANTS[name]):
        step, state, given = variant(params, grads)
        for _ in range(2):
            state = step(state, given)
        leaves = [np.sort(np.ravel(leaf)) for leaf in jax.tree.leaves(state.params)]
        ends.append(np.sort(np.concatenate(leaves)))
    np.testing.assert_allclose(*ends, rtol=1e-6)


def test_a_step_must_read_and_write_its_state_and_read_its_gradients():
    ones = jnp.ones((2, 3))
    stepper = timing.Stepper(lambda state, grads: state + grads, ones, ones)
    assert step_time.moved_bytes(stepper) == 3 * 24


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["adam", "sgd", "rmsprop"])
def test_the_side_of_pytorch_takes_steps(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch):
    torch, moved = pytest.importorskip("torch"), []

    class Parameter(torch.nn.Parameter):
        def __init__(self, *_: object):
            moved.append((self, self.detach().clone()))

    monkeypatch.setattr(torch.nn, "Parameter", Parameter)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), problem.equal_leaves(2, 64, 4))
    step = torch_fused.torch_stepper(ENTRIES[name], params)
    assert step is not None and step() > 0
    for now, before in moved[-2:]:  # those before them were tried only
        assert (now.detach() != before).any()


def test_candidates_take_turns_and_warm_up_does_not_count():
    order: list[str] = []

    def candidate(name):
        def work():
            order.append(name)
            return float(len(order))

        return work

    seconds = timing.in_turn({"a": candidate("a"), "b": candidate("b")}, repeats=2, warm_up=1)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert seconds == {"a": [3.0, 6.0], "b": [4.0, 5.0]}
    assert timing.in_turn({"a": candidate("a")}, 9, seconds=0.0)["a"] == [
        *map(float, range(10, 15))
    ]


def test_the_interval_of_a_median_goes_by_ranks():
    assert timing.interval([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    values = [float(n) for n in range(1, 41)]
    assert timing.interval(values) == Spread(20.5, 14.0, 27.0)  # as tables of the sign test say


def test_spread_of_known_values():
    assert timing.spread([4.0, 1.0, 2.0, 3.0, 5.0]) == Spread(3.0, 2.0, 4.0)
    assert timing.spread([2.0]) == Spread(2.0, 2.0, 2.0)

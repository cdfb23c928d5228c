"""The benchmarks run and write their page; how fast anything is, no test can judge."""

from collections import Counter
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from benchmarks import __main__ as bench
from benchmarks import figures, problem, step_time, timing, trainer
from benchmarks.figures import Figure, NotRun, exactly, to_markdown
from benchmarks.timing import Spread
from optax_bridge.correspondence import ENTRIES
from optax_bridge.spmd.examples import regression


def test_every_measurement_runs_and_stands_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "RESULTS.md"
    assert bench.main(["--quick", "--results", str(file)]) == 0
    text, printed = file.read_text(), capsys.readouterr().out
    for name in bench.MEASUREMENTS:
        assert f"## {name.capitalize()}\n" in text
        assert f"\n{name}: " in f"\n{printed}"
    assert "it stopped with" not in text


def test_nothing_comes_from_the_compilation_cache():
    x, events = jnp.ones(3), Counter[str]()

    def note(event: str, *_: object, **__: object) -> None:
        events.update([event])

    jax.monitoring.register_event_duration_secs_listener(note)
    jax.monitoring.register_event_listener(note)

    def count() -> int:
        events.clear()
        jax.jit(lambda x: x * 3 + 1).lower(x).compile()
        compiled = events["/jax/core/compile/backend_compile_duration"]
        return compiled - events["/jax/compilation_cache/cache_hits"]

    count()  # from now on it is kept, and JAX has looked at its flags
    assert count() == 0
    with bench.compiling_anew():
        assert count() == 1
    assert count() == 0


def test_a_ratio_is_above_its_bar_where_its_whole_interval_is():
    within = Figure("step", "adam | x", "a / b", Spread(1.03, 1.01, 1.04), 2.0, bar=1.02)
    above = Figure("step", "sgd", "a / b", Spread(1.1, 1.09, 1.11), 2.0, bar=1.02, note="a note")
    text = to_markdown([within, above, NotRun("step", "torch", "it is not here")], 60)
    assert "| adam \\| x | a / b | 1.03 (1.01 to 1.04) | 1.02 | 2 ms |  |" in text
    assert "| sgd | a / b | 1.10 (1.09 to 1.11) | 1.02 | 2 ms | **above**; a note |" in text
    assert "1 of 2." in text and "- not run: torch: it is not here" in text


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.name)
def test_every_optimizer_has_sides_that_can_be_measured(entry):
    names = [side.name for side in step_time.sides_of(entry)]
    assert names[:2] == ["legacy", "exact"]
    assert not entry.optax or names[2:] == ["optax"]


def test_the_standard_trees_are_of_the_sizes_that_the_readme_names():
    shapes = {name: jax.eval_shape(make) for name, make in problem.TREES.items()}
    assert problem.size(shapes["16 x 1024x1024"]) == 2**24
    assert problem.size(shapes["400 x 64x64"]) == 400 * 2**12


def test_a_ratio_is_that_of_the_first_side_to_the_second():
    sides = {"a": lambda: 3.0, "b": lambda: 2.0, "c": lambda: 1.0}
    pairs = [("a", "b", 1.02), ("c", "a", None), ("a", "not here", None)]
    first, second = figures.ratios("step", "x", sides, pairs, repeats=3)
    assert (first.what, first.ratio, first.base) == ("a / b", exactly(1.5), 2000.0)
    assert (second.what, second.ratio, second.base) == ("c / a", exactly(1 / 3), 3000.0)
    assert (first.bar, first.is_within_bar, second.is_within_bar) == (1.02, False, True)


def test_a_step_of_the_trainer_is_a_part_of_its_turn(tmp_path: Path):
    ticks = iter([0.0, 6.0, 10.0, 18.0])
    sides = trainer._sides(regression.trainer(), tmp_path, 2, ticks.__next__)
    assert [side() for side in sides.values()] == [3.0, 4.0]


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


def test_the_interval_of_a_median_goes_by_ranks():
    assert timing.interval([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    values = [float(n) for n in range(1, 41)]
    assert timing.interval(values) == Spread(20.5, 14.0, 27.0)  # as tables of the sign test say

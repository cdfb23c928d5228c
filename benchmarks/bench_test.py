"""The benchmarks run and write their page; how fast anything is, no test can judge."""

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from benchmarks import __main__ as bench
from benchmarks import figures, step_time, timing
from benchmarks.figures import Figure, NotRun, exactly, to_markdown
from benchmarks.timing import Spread, Stepper


def test_every_measurement_runs_and_stands_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert bench.main(["--quick", "--results", str(tmp_path / "RESULTS.md")]) == 0
    text, printed = (tmp_path / "RESULTS.md").read_text(), capsys.readouterr().out
    for name in bench.MEASUREMENTS:
        assert f"## {name.capitalize()}\n" in text and f"\n{name}: " in f"\n{printed}"
    assert "it stopped with" not in text


def test_a_measurement_that_stops_is_told_and_one_that_is_not_named_does_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stops(quick: bool) -> Iterator[Figure]:
        yield Figure("stops", "x", "a / b", exactly(1.0), 2.0)
        raise ValueError("no more")

    monkeypatch.setattr(bench, "MEASUREMENTS", {"unnamed": stops, "stops": stops})
    assert bench.main(["stops"]) == 0
    stopped = "stops: the rest: not run: it stopped with ValueError: no more"
    assert capsys.readouterr().out == f"stops: x: a / b  1.00\n{stopped}\n"


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
    text = to_markdown([within, above, above, NotRun("step", "torch", "it is not here")], 60)
    assert "| adam \\| x | a / b | 1.03 (1.01 to 1.04) | 1.02 | 2 ms |  |" in text
    assert "| sgd | a / b | 1.10 (1.09 to 1.11) | 1.02 | 2 ms | **above**; a note |" in text
    assert "2 of 3." in text and "- not run: torch: it is not here" in text


def test_tracing_compiling_and_memory_are_measured_apart(monkeypatch: pytest.MonkeyPatch):
    figures: Any = step_time.measure_memory(True)
    assert [16 < figure.base < 20 for figure in figures] == [True, True]  # what is donated, once
    ticks = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=ticks.__next__))
    stepper = Stepper(lambda s, g: s + g, jnp.ones(2), jnp.ones(2))
    assert (stepper.trace_seconds, stepper.compile_seconds) == (1.0, 2.0)


def test_a_ratio_is_that_of_the_first_side_to_the_second():
    sides = {"a": lambda: 3.0, "b": lambda: 2.0, "c": itertools.cycle([1.0, 2.0]).__next__}
    pairs = [("a", "b", 1.02), ("c", "a", None), ("a", "not here", None)]
    first, second = figures.ratios("step", "x", sides, pairs, repeats=3)
    assert (first.what, first.ratio, first.base) == ("a / b", exactly(1.5), 2000.0)
    assert (second.what, second.base) == ("c / a", 3000.0)
    assert {second.ratio.low, second.ratio.high} == {1 / 3, 2 / 3}


def test_candidates_take_turns_and_warm_up_does_not_count():
    order: list[str] = []
    work = {name: lambda name=name: order.append(name) or float(len(order)) for name in "ab"}
    seconds = timing.in_turn(work, repeats=2, warm_up=1)
    assert order == ["b", "a", "a", "b", "b", "a"]
    assert seconds == {"a": [3.0, 6.0], "b": [4.0, 5.0]}


def test_the_interval_of_a_median_goes_by_ranks():
    values = [float(n) for n in range(1, 41)]
    assert timing.interval(values) == Spread(20.5, 14.0, 27.0)  # as tables of the sign test say

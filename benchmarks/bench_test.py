"""The benchmarks run and write their page; how fast anything is, no test can judge."""

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import __main__ as bench
from benchmarks import figures, growth, problem, start, step_time, timing, tools, trainer
from benchmarks.figures import Figure, NotRun, exactly, to_markdown
from benchmarks.timing import Spread, Stepper
from optax_bridge.correspondence import ENTRIES


def test_every_measurement_runs_and_stands_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert bench.main(["--quick", "--results", str(tmp_path / "RESULTS.md")]) == 0
    text, printed = (tmp_path / "RESULTS.md").read_text(), capsys.readouterr().out
    for name in bench.MEASUREMENTS:
        assert f"## {name.capitalize()}\n" in text and f"\n{name}: " in f"\n{printed}"
    for sides in ("exact / legacy", "exact / optax.partition", "exact / chain of masks",
                  "import optax_bridge / import flax, optax", "trainer / plain loop"):  # fmt: skip
        assert f" | {sides} | " in text
    assert text.count(" seconds / bar | 0.") == 2  # far below their bars
    assert text.count(" | exact / optax | ") == 5 and "it stopped with" not in text


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
        assert (count(), count()) == (1, 1)
    assert count() == 0


def test_a_ratio_is_above_its_bar_where_its_whole_interval_is():
    within = Figure("step", "adam | x", "a / b", Spread(1.03, 1.01, 1.04), 2.0, bar=1.02)
    above = Figure("step", "sgd", "a / b", Spread(1.1, 1.09, 1.11), 2.0, bar=1.02, note="a note")
    assert bench._line(above) == "step: sgd: a / b  1.10 (1.09 to 1.11)  above 1.02  (a note)"
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
    order: list[str] = []
    clock = SimpleNamespace(perf_counter=lambda: order.append("clock") or 0.0)
    monkeypatch.setattr(timing, "time", clock)
    monkeypatch.setattr(jax, "block_until_ready", lambda state: order.append(str(state.tolist())))
    assert (stepper(), stepper()) == (0.0, 0.0)
    assert order == ["clock", "[2.0, 2.0]", "clock", "clock", "[3.0, 3.0]", "clock"]


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
    assert len(timing.in_turn(work, repeats=9, seconds=0.0)["b"]) == 5


def test_the_interval_of_a_median_goes_by_ranks():
    values = [float(n) for n in range(1, 41)]
    assert timing.interval(values) == Spread(20.5, 14.0, 27.0)  # as tables of the sign test say


def test_groups_are_the_same_three_ways():
    half = problem.tree(problem.QUICK_TREE, "bfloat16")
    trees = (half, problem.gradients(half))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(trees)} == {"bfloat16"}
    params: Any = problem.equal_leaves(4, 2)
    for tx in growth._group(2).values():
        updates: Any = tx.update(jax.tree.map(jnp.ones_like, params), tx.init(params), params)[0]
        steps = [leaf[0] / growth.RATE for leaf in updates.values()]
        # Adam's first step is its rate, but for 1 - 0.999 in float32.
        np.testing.assert_allclose(steps, [-1, -2, -1, -2], rtol=1e-5)


def test_growth_compares_compiling_tracing_and_the_second_of_two_steps(
    monkeypatch: pytest.MonkeyPatch,
):
    sides: dict[str, Any] = {"a": optax.sgd(1.0), "b": optax.sgd(2.0)}

    def built(step: Any, state: Any, grads: Any) -> Any:
        scale = 2.0 if state.tx is sides["a"] else 1.0
        times = {"compile_seconds": scale, "trace_seconds": scale**2}
        steps = itertools.cycle([99.0, scale**3])
        return type("Built", (), {**times, "__call__": lambda _: next(steps)})()

    monkeypatch.setattr(growth, "Stepper", built)
    stages: Any = growth._stages("n", problem.equal_leaves(1, 2), sides, quick=True)
    ratios = [(figure.subject, figure.ratio.median) for figure in stages]
    assert ratios == [("compile, n", 2.0), ("trace, n", 4.0), ("step, n", 8.0)]


def test_the_sides_of_a_start_and_of_the_trainer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    cached = "import os; assert os.environ['JAX_COMPILATION_CACHE_DIR'] == 'here'"
    assert 0.1 < start.seconds_to_run(f"{cached}; import time; time.sleep(0.1)", "here") < 5
    ours = ("optax_bridge", "legacy_optim")

    def seconds(code: str, cache: str = "") -> float:
        return 3.0 if any(name in code for name in ours) else 2.0

    monkeypatch.setattr(start, "seconds_to_run", seconds)
    found: Any = [*start.measure(quick=False)]
    assert [figure.what.split(" / ")[1] for figure in found] == [start.BASELINE] * 4 + ["optax"]
    assert {figure.ratio for figure in found} == {exactly(1.5)}
    clocks, models = list[object](), list[str]()

    def sides(example: Any, folder: Path, steps: int, clock: object) -> Any:
        clocks.append(clock)
        models.append(example.model.klass.__module__.rpartition(".")[2])
        return {"plain loop": lambda: 2e-3, "trainer": lambda: 3e-3}

    monkeypatch.setattr(trainer, "_sides", sides)
    of_time, of_processor = trainer.measure("tools", tmp_path, quick=True)
    assert of_time.ratio == exactly(1.5) and of_processor.ratio.median == pytest.approx(5.0)
    assert clocks == [time.perf_counter, time.process_time]
    assert len([*trainer.measure("tools", tmp_path, quick=False)]) == 2
    assert models == ["regression", "regression", "language_model", "regression"]


def test_figures_of_tools_are_over_their_bars(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tools, "prove_task", lambda task: SimpleNamespace(held=False))
    assert tools._prove(quick=True) == "1 claims, 0 proved as claimed"
    assert tools._time_call("x", lambda: "", 1e9).ratio.median < 1e-6
    runs = {"imports": (0.0, 1e6), "copy": (2.0, 3e6), "orbax": (3.0, 2e6), "msgpack": (1.0, 4e6)}
    names = {program: name for name, program in tools._CONVERSIONS.items()}
    sizes: list[int] = []

    def measured(program: str, source: Path) -> tuple[float, float]:
        sizes.append(source.stat().st_size)
        return runs[names[program]]

    monkeypatch.setattr(tools, "_measure_conversion", measured)
    monkeypatch.setattr(tools, "_ROWS", 1)
    found: Any = [*tools._convert()]
    expected = [1.5, 1e6 / sizes[0], 0.5, 3e6 / sizes[0]]
    assert [figure.ratio.median for figure in found] == expected


def test_memory_is_that_of_exact_over_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_time, "steppers", lambda *_: {"exact": 3, "legacy": 4, "optax": 6})
    monkeypatch.setattr(step_time, "_planned_bytes", float)
    found: Any = [*step_time.measure_memory(True)]
    ratios = [(figure.what, figure.ratio.median, figure.base) for figure in found]
    assert ratios == [("exact / legacy", 0.75, 4 / 128), ("exact / optax", 0.5, 6 / 128)]
    states = [side.init({"w": jnp.ones(2)}) for side in step_time.sides_of(ENTRIES["adam"])]
    kinds = ("_AdamParamState", "AdamState", "ScaleByAdamState")
    assert all(kind in repr(state) for kind, state in zip(kinds, states, strict=True))

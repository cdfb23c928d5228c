"""The benchmarks run and write their page; how fast anything is, no test can judge."""

import importlib.util
import itertools
import re
import subprocess
import sys
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
from optax_bridge.cli import installed
from optax_bridge.correspondence import ENTRIES


def masked(text: str) -> list[str]:
    """The lines of a run without what differs from run to run; that against PyTorch apart."""
    text = re.sub(r"(?<= )-?[\d.]+ \(-?[\d.]+ to -?[\d.]+\)", "#", text)
    text = re.sub(r"(: [^:|\n]+  )-?[\d.]+", r"\1#", text)  # as printed
    text = re.sub(r"(\n\| [^|]+ \| [^|]+ \| )-?[\d.]+ \|", r"\1# |", text)  # as in a table
    text = re.sub(r"\| (?!0\.2 ms)[\d.e+]+ (ms|bytes) \| ", r"| # \1 | ", text)
    text = re.sub(r"  above [\d.]+|\*\*above\*\*(; )?", "", text)
    text = re.sub(r"[\d.]+ a second of", "# a second of", text)
    text = re.sub(r"^\d{4}-.*|\d+ of \d+\.$", "#", text, flags=re.MULTILINE)
    return [line.rstrip() for line in text.splitlines() if "PyTorch" not in line]


def test_every_measurement_runs_and_stands_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """`testdata/quick.md` has the lines of `python -m benchmarks --quick`, and the page."""
    assert bench.main(["--quick", "--results", str(tmp_path / "RESULTS.md")]) == 0
    text = capsys.readouterr().out + (tmp_path / "RESULTS.md").read_text()
    expected = Path(__file__).parent / "testdata" / "quick.md"
    assert masked(text) == expected.read_text(encoding="utf-8").splitlines()
    versions = ", ".join(f"{name} {version}" for name, version in installed.versions().items())
    assert f" cores, device {jax.devices()[0].device_kind}; " in text and f" {versions}.\n" in text
    of_torch = "not run: torch is not installed"
    of_torch = "exact / torch  " if importlib.util.find_spec("torch") else of_torch
    assert f"step: adam, 16 x 1024x1024, float32, against PyTorch's fused step: {of_torch}" in text
    assert text.count(" seconds / bar | 0.") == 2  # far below their bars


def test_a_full_run_takes_every_optimizer_tree_and_number(monkeypatch: pytest.MonkeyPatch):
    plan = list[Any]()
    monkeypatch.setattr(problem, "TREES", dict.fromkeys(problem.TREES, lambda: {"w": jnp.ones(2)}))
    monkeypatch.setattr(step_time, "steppers", lambda entry, params: {"w": params["w"].dtype.name})
    monkeypatch.setattr(step_time, "_against_torch", lambda quick: [])
    monkeypatch.setattr(
        step_time, "ratios", lambda *args, **limits: plan.append((args, limits)) or ()
    )
    assert [*step_time.measure(quick=False)] == []
    trees = [("16 x 1024x1024", "float32"), ("16 x 1024x1024", "bfloat16")]
    trees.append(("400 x 64x64", "float32"))
    pairs = (("exact", "legacy", 1.02), ("exact", "optax", 1.02))
    assert plan == [
        (("step", f"{name}, {tree}, {dtype}", {"w": dtype}, pairs), {"repeats": 40, "seconds": 2.5})
        for tree, dtype in trees
        for name in ENTRIES
    ]
    monkeypatch.setattr(growth, "_stages", lambda *args: [(*args[:1], len(args[1]), [*args[2]])])
    two, three = ["exact", "optax"], ["exact", "optax.partition", "chain of masks"]
    assert [*growth.measure(quick=False)] == [
        *((f"{leaves} leaves", leaves, two) for leaves in (10, 100, 1000)),
        *((f"{groups} groups, 128 leaves", 128, three) for groups in (1, 8, 64)),
    ]
    folders = set[str]()

    def check_output(command: list[str], text: bool, env: dict[str, str]) -> str:
        folders.add(env["JAX_COMPILATION_CACHE_DIR"])
        return f"first\n{' '.join(command[1:])}\n"

    monkeypatch.setattr(tools.subprocess, "check_output", check_output)
    checked: Any = [*tools._check()]
    assert [(figure.subject, figure.base, figure.note) for figure in checked] == [
        ("check, nothing compiled before", 60.0, "-m optax_bridge check"),
        ("check again", 30.0, "-m optax_bridge check"),
    ]
    assert len(folders) == 1


def test_parameters_are_normal_over_the_root_of_their_columns():
    params = problem.tree("400 x 64x64")
    assert problem.size(params) == 400 * 64 * 64 and list(params)[-1] == "leaf_00399"
    values, grads = (jnp.stack([*tree.values()]) for tree in (params, problem.gradients(params)))
    assert (values.shape, values.dtype, grads.dtype) == ((400, 64, 64), jnp.float32, jnp.float32)
    assert float(values.std()) == pytest.approx(1 / 8, rel=0.01)  # of 1.6 million
    assert float(grads.std()) == pytest.approx(1, rel=0.01)
    assert abs(float((values * grads).mean())) < 1e-3  # drawn apart


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


def test_the_peak_of_a_conversion_is_told_after_it_has_passed():
    lines = "import time; from pathlib import Path; started = 0.0; large = b'x' * 2**28; del large"
    done = subprocess.run([sys.executable, "-c", lines + tools._REPORT], capture_output=True)
    assert float(done.stdout.split()[2]) > 2**28, done.stderr


def test_memory_is_that_of_exact_over_the_other(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(step_time, "steppers", lambda *_: {"exact": 3, "legacy": 4, "optax": 6})
    monkeypatch.setattr(step_time, "_planned_bytes", float)
    found: Any = [*step_time.measure_memory(True)]
    ratios = [(figure.what, figure.ratio.median, figure.base) for figure in found]
    assert ratios == [("exact / legacy", 0.75, 4 / 128), ("exact / optax", 0.5, 6 / 128)]
    states = [side.init({"w": jnp.ones(2)}) for side in step_time.sides_of(ENTRIES["adam"])]
    kinds = ("_AdamParamState", "AdamState", "ScaleByAdamState")
    assert all(kind in repr(state) for kind, state in zip(kinds, states, strict=True))

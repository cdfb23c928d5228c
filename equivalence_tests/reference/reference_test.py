"""legacy_optim against the genuine flax.optim: every recording, replayed."""

import dataclasses
import inspect
import platform
from typing import Any

import flax.serialization
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
from equivalence_tests.compare.comparison import compare
from equivalence_tests.reference import load, replay
from equivalence_tests.reference.cases import CASES, CHECKPOINTS, HALF_PRECISION, Case
from equivalence_tests.reference.load import Recording, RecordingError
from optax_bridge.correspondence import ENTRIES

# legacy_optim says once that it is legacy, in whichever test comes first.
pytestmark = pytest.mark.filterwarnings("ignore:flax.optim was removed:DeprecationWarning")

# The same source under jax 0.4.13 and under today's differs by less than 1e-6 of a tensor's scale
# over these recordings, by rounding alone; an error in the algorithm shows above.
FLOAT32_BOUND = 2e-6

# In units of the dtype's epsilon: what XLA keeps in float32 between two operations, and whether it
# divides by a scalar or multiplies by its reciprocal, decides about half an epsilon a step, and a
# moment remembers 1 / (1 - 0.9) = 10 steps.
HALF_PRECISION_BOUND = 5.0

Steps = list[tuple[replay.Flat, replay.Flat, dict[str, str]]]


def bound(recording: Recording) -> float:
    """The tolerance in parts of the tensor's scale: that of the coarsest dtype in the recording."""
    leaves = (*recording.initial.values(), *recording.params.values(), *recording.state.values())
    floats = [leaf.dtype for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.floating)]
    coarsest = max(float(jnp.finfo(dtype).eps) for dtype in floats)
    return FLOAT32_BOUND if coarsest < 1e-6 else HALF_PRECISION_BOUND * coarsest


def structure_error(recording: Recording, params: Any, state: Any, absent: Any) -> str | None:
    """Says how the trees of one step differ from the recording's in paths, dtypes or shapes."""

    def kinds(tree: Any, stacked: bool = False) -> Any:
        return {path: (leaf.dtype.name, leaf.shape[int(stacked) :]) for path, leaf in tree.items()}

    for title, found, expected in (
        ("params", kinds(params), kinds(recording.params, stacked=True)),
        ("state", kinds(state), kinds(recording.state, stacked=True)),
        ("state without arrays", absent, dict(recording.absent)),
    ):
        if found != expected:
            return f"{recording.case.name}: {title}: expected {expected}, found {found}"
    return None


def assert_agrees(recording: Recording, steps: Steps) -> None:
    for number, step in enumerate(steps):
        error = structure_error(recording, *step)
        assert error is None, f"step {number}: {error}"
    expected = {"params": dict(recording.params), "state": dict(recording.state)}
    found = compare(
        expected,
        {
            part: {path: np.stack([step[index][path] for step in steps]) for path in expected[part]}
            for index, part in enumerate(expected)
        },
    )
    text = f"{found.worst_leaf}: {found.relative:.3g} of its scale; first {found.first}"
    assert found.relative <= bound(recording), text
    same_machine = recording.machine == platform.machine()
    is_cpu = jax.default_backend() == "cpu"
    if recording.case.bits and SAME_ORDER and same_machine and is_cpu:
        assert found.identical, text


# JAX 0.9 adds up large tensors, and fuses one product, in another order than those around it.
SAME_ORDER = jax.__version_info__ >= (0, 10)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_trajectory(case: Case, request: pytest.FixtureRequest) -> None:
    if case.name == "lars/defaults_large" and not SAME_ORDER:
        why = "JAX 0.9 adds up its norm otherwise: 2.8e-6 of the scale, not 2e-6"
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))
    recording = load.recording(case)
    given = recording.initial, recording.gradients, recording.learning_rates
    assert_agrees(recording, list(replay.trajectory(legacy_optim, case, *given)))


@pytest.mark.parametrize("case", CHECKPOINTS, ids=lambda case: case.name)
def test_checkpoint_continues(case: Case) -> None:
    recording = load.recording(case)
    assert recording.checkpoint is not None
    blank = {path: np.zeros_like(leaf) for path, leaf in recording.initial.items()}
    fresh = replay.create(legacy_optim, case, blank)
    restored = flax.serialization.from_bytes(fresh, recording.checkpoint.read_bytes())
    assert type(restored) is type(fresh)
    for path, leaf in replay.snapshot(restored)[0].items():
        np.testing.assert_array_equal(leaf, recording.initial[path], err_msg=path)
    optimizers = replay.train(case, restored, recording.gradients, recording.learning_rates)
    assert_agrees(recording, [replay.snapshot(optimizer) for optimizer in optimizers])


@pytest.mark.parametrize("case", CHECKPOINTS, ids=lambda case: case.name)
def test_checkpoint_is_written_back_to_the_same_bytes(case: Case) -> None:
    recording = load.recording(case)
    assert recording.checkpoint is not None
    saved = recording.checkpoint.read_bytes()
    fresh = replay.create(legacy_optim, case, recording.initial)
    assert flax.serialization.to_bytes(flax.serialization.from_bytes(fresh, saved)) == saved


# The judge itself: what it must notice.


def _steps(recording: Recording) -> Steps:
    """The recording's own trajectory, as a replay would give it."""
    return [
        (
            {path: leaf[step].copy() for path, leaf in recording.params.items()},
            {path: leaf[step].copy() for path, leaf in recording.state.items()},
            dict(recording.absent),
        )
        for step in range(len(recording.learning_rates))
    ]


def _case(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


@pytest.mark.parametrize(
    ("name", "step", "change"),
    [
        ("adam/defaults", 5, lambda value: value * 1.001),
        ("adam/defaults", 5, lambda value: value * np.nan),
        ("adam/defaults", 27, np.nan_to_num),
        ("adam/defaults", 5, lambda value: value.astype(np.float64)),
        ("adam/bfloat16", 5, lambda value: value * 1.1),
        pytest.param(
            "momentum/defaults",
            5,
            lambda value: np.nextafter(value, np.float32(9)),
            marks=pytest.mark.skipif(not SAME_ORDER, reason="JAX 0.9: no bits are asked"),
        ),
    ],
    ids=["too_far", "nan", "not_nan", "dtype", "too_far_in_bfloat16", "one_bit"],
)
def test_the_judge_notices(name: str, step: int, change) -> None:
    recording = load.recording(_case(name))
    steps = _steps(recording)
    assert_agrees(recording, steps)
    for part in steps[step][:2]:
        for path, leaf in part.items():
            if leaf.dtype != np.int32:
                part[path] = np.asarray(change(leaf))
                if name.endswith("bfloat16"):
                    part[path] = part[path].astype(leaf.dtype)
    with pytest.raises(AssertionError):
        assert_agrees(recording, steps)


def test_the_judge_notices_a_wrong_step_count() -> None:
    recording = load.recording(_case("adam/bfloat16_long"))
    steps = _steps(recording)
    steps[-1][1]["step"] += 1
    with pytest.raises(AssertionError, match=r"step 300, state\['step'\]: 300 / 301"):
        assert_agrees(recording, steps)


def test_the_judge_notices_another_hyper_parameter() -> None:
    case = _case("adam/defaults")
    recording = load.recording(case)
    changed = {**case.optimizer, "kwargs": {**case.optimizer["kwargs"], "eps": 1.1e-8}}
    other = dataclasses.replace(case, optimizer=changed)
    given = recording.initial, recording.gradients, recording.learning_rates
    with pytest.raises(AssertionError):
        assert_agrees(recording, list(replay.trajectory(legacy_optim, other, *given)))


# The files.


def test_a_case_that_was_changed_asks_for_a_new_recording() -> None:
    case = dataclasses.replace(_case("adam/defaults"), stream="normal")
    with pytest.raises(RecordingError, match=r"'stream': 'hostile'.*the case table says.*'normal'"):
        load.recording(case)


def test_a_case_that_was_never_recorded_asks_for_a_recording() -> None:
    case = dataclasses.replace(_case("adam/defaults"), name="adam/other")
    with pytest.raises(
        RecordingError, match="expected a recording of 'adam/other', found adam/def"
    ):
        load.recording(case)


def test_nothing_is_recorded_that_is_not_in_the_table() -> None:
    expected = {f"{case.name.split('/')[0]}.npz" for case in (*CASES, *HALF_PRECISION)}
    expected |= {f"{case.name}{end}" for case in CHECKPOINTS for end in (".npz", ".msgpack")}
    expected.add("torch.npz")  # of PyTorch, which the witness reads
    suffixes = {".npz", ".msgpack"}
    files = [path for path in load.FOLDER.rglob("*") if path.suffix in suffixes]
    assert {path.relative_to(load.FOLDER).as_posix() for path in files} == expected
    assert sum(path.stat().st_size for path in files) < 3_000_000
    every = (*CASES, *HALF_PRECISION, *CHECKPOINTS)
    names = [load.recording(case).case.name for case in every]
    assert len(set(names)) == len(names)


# The table.


def _classes(spec: dict) -> list[dict]:
    """The specs of a case's optimizer and of those within it."""
    inner = [spec["wrapped"]] if "wrapped" in spec else []
    inner += [group["optimizer"] for group in spec.get("groups", ())]
    return [spec, *(each for part in inner for each in _classes(part))]


def _recorded_values(name: str) -> dict[str, list]:
    """Every value that some case gives to each hyper-parameter of a class."""
    values: dict[str, list] = {}
    for case in CASES:
        for spec in _classes(case.optimizer):
            if spec["class"] == name:
                for key, value in (*spec["kwargs"].items(), *case.overrides.items()):
                    values.setdefault(key, []).append(value)
    return values


OPTIMIZERS = sorted(
    entry.legacy.__name__
    for entry in ENTRIES.values()
    if any(source.startswith("flax.optim.") for source in entry.sources)
)


def test_every_optimizer_is_recorded_in_every_way() -> None:
    """With and without a schedule, on hostile gradients, each argument once off its default."""
    for name in OPTIMIZERS:
        own = [case for case in CASES if case.optimizer["class"] == name]
        assert {"constructor"} < {case.rate for case in own}, f"{name}: no scheduled learning rate"
        assert "hostile" in {case.stream for case in own}, f"{name}: no hostile gradients"
        half = {(c.dtype, c.jit) for c in HALF_PRECISION if c.optimizer["class"] == name}
        assert len(half) == 4, f"{name}: in half precision only {half}"
        values = _recorded_values(name)
        for parameter in inspect.signature(getattr(legacy_optim, name)).parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                moved = [v for v in values.get(parameter.name, []) if v != parameter.default]
                assert moved, f"{name}({parameter.name}): no case moves it off {parameter.default}"

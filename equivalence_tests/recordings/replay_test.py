"""Faults planted in the new side of a training, each put down to its stage and its cause."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests import RecordingError, assert_replays, replay
from equivalence_tests.recordings.format import Step, read
from equivalence_tests.recordings.recorder import Recorder, digest
from equivalence_tests.recordings.replay import Replay, compare_recordings
from equivalence_tests.recordings.stages import Outcome, Stage, stage_between

STEPS = 12
RATES = optax.linear_schedule(0.1, 0.02, 10)
KEY = jax.random.PRNGKey(3)


def loss(params: Any, batch: Any, model_state: Any, rng: Any, **how: Any) -> Any:
    x, y = batch
    weights = params["dense"]["kernel"]
    weights = weights.T if how.get("transposed") else weights
    head = params["head"] if how.get("untied") else weights
    h = jnp.tanh(x @ weights + params["dense"]["bias"])
    if how.get("half"):
        h = h.astype(jnp.bfloat16)
    if how.get("dropout"):
        h = h * jax.random.bernoulli(rng, 0.7, h.shape) / 0.7
    out = (h @ head + h @ params["out"]).astype(jnp.float32)
    labels = y * (1 - how.get("smoothing", 0.0)) + how.get("smoothing", 0.0) / y.shape[-1]
    total = optax.softmax_cross_entropy(out, labels)
    total = total.sum() if how.get("sum") else total.mean()
    momentum = how.get("momentum", 0.9)
    h = h.astype(jnp.float32)
    new = {"mean": h.mean(0), "var": h.var(0, ddof=how.get("ddof", 1))}
    moved = {name: momentum * model_state[name] + (1 - momentum) * new[name] for name in new}
    return total * how.get("scale", 1.0), moved


def planted(**how: Any) -> Any:
    return lambda params, batch, model_state, rng: loss(params, batch, model_state, rng, **how)


def make_tx(
    eps: float = 1e-2, weight_decay: float = 0.1, b1: float = 0.9, mask: Any = None
) -> optax.GradientTransformation:
    return optax.adamw(RATES, b1=b1, eps=eps, weight_decay=weight_decay, mask=mask)


def batches(seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    xs = rng.standard_normal((STEPS, 8, 4)).astype(np.float32)
    return [(x, np.eye(4, dtype=np.float32)[rng.integers(0, 4, 8)]) for x in xs]


def record(path: Path, tx: Any = None, start: int = 0, **how: Any) -> Path:
    tx = make_tx() if tx is None else tx
    rng = np.random.default_rng(1)
    normal = lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)  # noqa: E731
    params = {"dense": {"bias": normal(4), "kernel": normal(4, 4)}, "out": normal(4, 4)}
    state, model_state = tx.init(params), {"mean": jnp.zeros(4), "var": jnp.ones(4)}
    settings = {"eps": 1e-2, "weight_decay": 0.1, "betas": (0.9, 0.999)}
    rec = Recorder(path, steps=50, first=start, settings=settings)
    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    clip = optax.clip_by_global_norm(how["clip"]) if "clip" in how else optax.identity()
    update = jax.jit(tx.update)
    for number, batch in enumerate(batches()):
        (value, aux), raw = gradient(params, batch, model_state, KEY)
        grads, _ = clip.update(raw, clip.init(params))
        updates, new_state = update(grads, state, params)
        new = optax.apply_updates(params, updates)
        if number >= start:
            more = {
                "state": state if number == start and how.get("with_state") else None,
                "raw_grads": raw if how.get("with_raw") else None,
                "learning_rate": how.get("factor", 1.0) * RATES(number),
            }
            more |= {"model_state": model_state, "rng": KEY, "loss": value, "batch": batch}
            rec.step(params, grads, new, **more)
        params, state, model_state = new, new_state, aux
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recordings") / "run.rec")


PARTS = {"dense": {"kernel": "train", "bias": "frozen"}, "out": "train"}
DECAYED = {"dense": {"kernel": True, "bias": False}, "out": True}
OPTIMIZERS: dict[str, Any] = {
    "eps": lambda eps=1e-8: make_tx(eps),
    "decay": lambda weight_decay=0.0: make_tx(weight_decay=weight_decay),
    "b1": lambda b1=0.5: make_tx(b1=b1),
    "bias correction": lambda: optax.rmsprop(RATES, 0.999, 1e-2, momentum=0.9),
    "a rate one step late": lambda: optax.adamw(
        lambda count: RATES(jnp.maximum(count - 1, 0)), eps=1e-2, weight_decay=0.1
    ),
    "momentum's form": lambda: optax.sgd(RATES, momentum=0.9),
    "a frozen leaf": lambda: optax.partition(
        {"train": make_tx(), "frozen": optax.set_to_zero()}, PARTS
    ),
    "no decay of biases": lambda: make_tx(mask=DECAYED),
    "clipping after the decay": lambda: optax.chain(
        optax.scale_by_adam(eps=1e-2), optax.add_decayed_weights(0.1), optax.clip(0.5),
        optax.scale_by_learning_rate(RATES),
    ),
}  # fmt: skip
EXPLAINED = ("eps", "decay", "b1")  # by a setting
LOSSES: dict[str, dict[str, Any]] = {
    "a sum for a mean": {"sum": True},
    "a transposed kernel": {"transposed": True},
    "dropout left on": {"dropout": True},
    "the momentum of the statistics": {"momentum": 0.99},
    "the variance of the statistics": {"ddof": 0},
    "a cast": {"half": True},
    "label smoothing": {"smoothing": 0.2},
    "tied weights untied": {"untied": True},
    "a loss scale": {"scale": 1024.0},
}


OWN = batches()
BATCHES = {
    "another normalisation": [(2 * x - 1, y) for x, y in OWN],
    "the same batches in another order": OWN[::-1],
    "the same examples in another order": [(x[::-1], y[::-1]) for x, y in OWN],
    "other data": batches(seed=7),
    "from step 3, batch[0]: other data": OWN[:3] + batches(seed=7)[3:4] + OWN[4:],
}
# What the new side has that the recorded one has not.
FAULTS: dict[str, dict[str, Any]] = {
    **{name: {"optimizer": tx} for name, tx in OPTIMIZERS.items()},
    **{name: {"loss": planted(**how)} for name, how in LOSSES.items()},
    **{name: {"batches": other} for name, other in BATCHES.items()},
}


def _text(result: Replay) -> str:
    """A result without the folder that it is in."""
    return str(result).replace(f"{Path(result.title).parent}/", "")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault(fault: str, run: Path, monkeypatch: pytest.MonkeyPatch, recorded: Any):
    if fault not in EXPLAINED:  # two are tried
        monkeypatch.setattr("equivalence_tests.recordings.replay.TRIES", 2)
    result = replay(run, **{"optimizer": make_tx, "loss": loss, **FAULTS[fault]})
    recorded("replay.txt", {fault: _text(result)}, some=True, rounded=True)


@pytest.mark.parametrize(
    ("outcomes", "whole"),
    [
        ("IDENTICAL ROUNDING IDENTICAL", "ROUNDING"),
        ("IDENTICAL not_judged IDENTICAL", "IDENTICAL"),
        ("ROUNDING NOT_JUDGED IDENTICAL", "NOT_JUDGED"),
        ("NOT_JUDGED ROUNDING UNDECIDED DIFFERENT", "UNDECIDED"),
        ("ROUNDING DIFFERENT UNDECIDED not_judged", "DIFFERENT"),
        ("not_judged not_judged", "NOT_JUDGED"),
    ],
)
def test_a_replay_is_its_first_parting_or_its_least_stage(outcomes: str, whole: str):
    """One that is not judged counts where it was asked for, here in capitals."""
    stages = [Stage(o, Outcome[o.upper()], asked=o.isupper()) for o in outcomes.split()]
    result = Replay("it", stages)
    assert result.outcome is Outcome[whole]
    first = f"it diverges first in {whole}:" if result.first else f"it: {result.outcome.value}"
    assert result.headline.startswith(first)


def test_nothing_differs(run: Path):
    result = assert_replays(run, optimizer=make_tx, loss=loss, batches=batches)
    assert [stage.outcome for stage in result.stages] != [Outcome.NOT_JUDGED] * 4
    for tx, given, text in ((make_tx, [], "not judged"), (OPTIMIZERS["eps"], None, "eps=0")):
        with pytest.raises(AssertionError, match=text):
            assert_replays(run, optimizer=tx, batches=given)


def test_moments_in_half_precision(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("equivalence_tests.recordings.replay.TRIES", 0)
    tx = optax.adamw(RATES, eps=1e-2, weight_decay=0.1, mu_dtype=jnp.bfloat16)
    stage = replay(run, optimizer=tx).stages[-1]
    assert stage.outcome is Outcome.UNDECIDED, stage
    assert "half precision?" in stage.text


_W, _B = np.asarray([3.0, 1.0, -2.0], np.float32), np.zeros(2, np.float32)
# What is recorded instead of the gradients (_W, _B), and what the loss here has.
OTHERS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "None, and no gradient": ({"grads": {"w": _W, "b": None}}, {}),
    "None, and a gradient": ({"grads": {"w": _W, "b": None}}, {"b": 1.0}),
    "a loss of NaN": ({"loss": np.nan}, {}),
    "rounding": ({"grads": {"w": _W, "b": _B + 1e-9}}, {"b": 3e-9}),
    "a sum": ({"grads": {"w": 4 * _W, "b": _B}}, {}),
    "a sum here": ({"grads": {"w": _W / 4, "b": _B}, "loss": 0.5}, {}),
    "micro-batches": ({"micro_batches": 5}, {"all": 5.0}),
    "micro-batches there": ({"micro_batches": 5}, {"all": 0.2}),
    "a loss scale there": ({"grads": {"w": 512 * _W, "b": _B}}, {}),
    "clipped there": ({"grads": {"w": _W / 7, "b": _B}}, {}),
    "a sign": ({"grads": {"w": _W, "b": _B + 1}}, {"b": -1.0}),
    "a leaf": ({"grads": {"w": _W, "b": _B + 1}}, {}),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_a_difference_of_gradients_looks_like(case: str, tmp_path: Path, recorded: Any):
    there, here = OTHERS[case]
    fields = {"grads": {"w": _W, "b": _B}, "loss": 2.0, "batch": np.tile(_W, (4, 1)), **there}
    Recorder(tmp_path / "run.rec").step({"w": np.ones(3, "f4"), "b": np.ones(2, "f4")}, **fields)

    def tiny(params: Any, batch: Any) -> Any:
        total = (batch @ params["w"]).mean() + here.get("b", 0.0) * (params["b"] - 1).sum()
        return here.get("all", 1.0) * total

    result = replay(tmp_path / "run.rec", loss=tiny)
    recorded("replay.txt", {f"gradients: {case}": _text(result)}, some=True, rounded=True)


def test_the_first_step_and_its_farthest_leaf_are_named():
    there = {name: np.ones((4, 2), np.float32) for name in "abc"}
    here = {name: leaf.copy() for name, leaf in there.items()}
    here["a"][2:] += 0.5
    here["b"][1:] += 0.1
    here["c"][1:] += 0.3
    steps = [Step(10 + number, {}) for number in range(4)]
    stage = stage_between("it", [there, here], steps, 256.0)
    assert (stage.outcome, stage.step, stage.leaf) == (Outcome.DIFFERENT, 11, "c")
    assert stage.text.startswith("from step 11, c by 23.1 %")
    assert stage.distance == pytest.approx([0, 0.3, 0.5, 0.5])


def test_one_rate_per_call_is_not_taken_from_several(tmp_path: Path):
    tree = {"w": np.ones(2, np.float32)}
    Recorder(tmp_path / "run.rec").step(tree, tree, tree, learning_rate={"a": 0.1, "b": 0.2})
    result = replay(tmp_path / "run.rec", optimizer=legacy_optim.GradientDescent())
    assert "the optimizer needs one rate per call; the recording lacks it" in str(result)
    assert result.outcome is Outcome.NOT_JUDGED


def test_gradients_that_are_clipped(tmp_path: Path):
    result = replay(record(tmp_path / "run.rec", clip=0.2), loss=loss, optimizer=make_tx)
    assert result.first is not None and result.first.name == "loss and gradients"
    assert "times the recorded one: is that one clipped?" in result.first.text
    path = record(tmp_path / "raw.rec", clip=0.2, with_raw=True)
    assert_replays(path, loss=loss, optimizer=make_tx)


def test_a_recording_that_begins_later(run: Path, tmp_path: Path):
    without = replay(record(tmp_path / "a.rec", start=5), optimizer=make_tx)
    assert "begins at step 5 without the optimizer's state" in str(without)
    assert without.outcome is Outcome.NOT_JUDGED
    path = record(tmp_path / "b.rec", start=5, with_state=True)
    assert_replays(path, optimizer=make_tx)
    for pair in ((read(path), read(run)), (read(run), read(path))):
        with pytest.raises(RecordingError, match="expected its first step to be"):
            compare_recordings(*pair)


def test_two_recordings(run: Path, tmp_path: Path, recorded: Any):
    def compare(name: str, one: Any, other: Any) -> None:
        text = str(compare_recordings(one, other))
        for folder in (run.parent, tmp_path):
            text = text.replace(f"{folder}/", "")
        recorded("two_recordings.txt", {name: text}, some=True, rounded=True)

    compare("itself", read(run), read(run))
    shorter = read(run, steps=4)
    compare("a shorter one", read(run), shorter)
    compare("a longer one", shorter, read(run))
    other = read(record(tmp_path / "other.rec", tx=make_tx(eps=1e-4), with_raw=True))
    compare("another epsilon", read(run), other)
    compare("other rates", read(run), read(record(tmp_path / "rates.rec", factor=2.0)))


def test_flax_optim_is_recorded(tmp_path: Path):
    params = {"w": jnp.linspace(-1, 1, 4), "scalar": jnp.ones(())}
    optimizer = legacy_optim.Adam(0.3, eps=1e-3).create(params)
    rec = Recorder(tmp_path / "run.rec", steps=5)
    rec.note(loss=1.5)
    with rec.flax(legacy_optim):
        for _ in range(8):
            optimizer = optimizer.apply_gradient(optimizer.target, learning_rate=0.1)
    assert [step.loss for step in read(tmp_path / "run.rec").steps] == [1.5, *[None] * 4]
    with Recorder(tmp_path / "mid.rec").flax(legacy_optim):
        optimizer.apply_gradient(optimizer.target)
    assert read(tmp_path / "mid.rec").first == 8
    assert_replays(tmp_path / "mid.rec", optimizer=legacy_optim.Adam(0.3, eps=1e-3))
    assert_replays(tmp_path / "run.rec", optimizer=optax.adam(0.1, eps=1e-3))
    result = replay(tmp_path / "run.rec", optimizer=optax.adam(0.1))
    assert "eps=0.001" in result.explanation
    result = replay(tmp_path / "run.rec", optimizer=optax.adam(0.2, eps=1e-3))
    assert result.first is not None and result.first.name == "rate"


def test_groups_of_flax_optim_are_recorded_and_judged(tmp_path: Path):
    rates, params = {"a": 0.1, "b": 0.2}, {"b": jnp.ones(3), "a": jnp.ones(2)}
    groups = [
        (legacy_optim.ModelParamTraversal(lambda path, _, name=name: name in path),
         legacy_optim.GradientDescent(rate))
        for name, rate in rates.items()
    ]  # fmt: skip
    optimizer = legacy_optim.MultiOptimizer(*groups).create(params)
    with Recorder(tmp_path / "run.rec").flax(legacy_optim):
        optimizer.apply_gradient(params)
    run = read(tmp_path / "run.rec")
    found = [(g["name"], g["params"], g["settings"]["learning_rate"]) for g in run.index["groups"]]
    assert found == [("0", [["a"]], 0.1), ("1", [["b"]], 0.2)]

    def by_group(**changed: float) -> Any:
        txs: Any = {name: optax.sgd(rate) for name, rate in (rates | changed).items()}
        return optax.partition(txs, {name: name for name in params})

    assert_replays(run, optimizer=by_group())
    result = replay(run, optimizer=by_group(b=0.3))
    assert "rate: different: from step 0, rate['1']: recorded 0.2, here 0.3" in str(result), result


def test_damaged_recordings(run: Path, tmp_path: Path):
    path = tmp_path / "cut.rec"
    shutil.copytree(run, path)
    (path / "step-00000004.npz").write_bytes(b"PK")
    assert "the 4 steps before it are judged" in str(replay(path, optimizer=make_tx))
    (path / "step-00000004.npz").unlink()
    assert "step 4 is missing" in str(replay(path, optimizer=make_tx))
    index = json.loads((path / "index.json").read_text())
    for version in (0, 99):
        (path / "index.json").write_text(json.dumps({**index, "version": version}))
        with pytest.raises(RecordingError, match=f"version 1, found {version}"):
            read(path)
    (path / "index.json").write_text("{")
    with pytest.raises(RecordingError, match="as `optax-bridge recorder` makes one"):
        read(path)


def test_recorder_refuses(tmp_path: Path):
    tree = {"w": np.ones(2)}
    rec = Recorder(tmp_path / "run.rec")
    step = jax.jit(lambda grads: rec.step(params=tree, grads=grads, new_params=tree))
    with pytest.raises(ValueError, match=r"jax\.disable_jit\(\)"):
        step(tree)
    with pytest.raises(ValueError, match=r"grads\['w'\]: expected an array of numbers"):
        rec.step(params=tree, grads={"w": "text"}, new_params=tree)
    copies, none = {"w": np.ones((jax.local_device_count(), 2))}, {"w": None}
    with pytest.raises(ValueError, match=r"params\['w'\]: expected one replica.*unreplicate"):
        rec.step(params=copies, grads=copies)
    rec._is_writer = False  # as in every process but the first
    rec.step(params=tree, grads=tree)
    rec._is_writer = True
    assert not (tmp_path / "run.rec").exists()
    several = {**copies, "b": np.ones(3)}
    rec.step(params=several, grads=none, raw_grads=none, new_params=several, batch=digest(tree))
    step_read = read(tmp_path / "run.rec").steps[0]
    assert step_read.trees["grads"] == step_read.trees["raw_grads"] == {("w",): None}
    assert step_read.batch == digest(tree)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    with pytest.raises(ValueError, match="already exists; name another"):
        Recorder(tmp_path / "run.rec")

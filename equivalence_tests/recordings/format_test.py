"""Recordings as files: what is written is read, and what cannot be judged is named."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from equivalence_tests import RecordingError, assert_replays, replay
from equivalence_tests.pair.named import named_side
from equivalence_tests.recordings import format
from equivalence_tests.recordings.format import in_flax, pack, read, read_packed, recorded_state
from equivalence_tests.recordings.recorder import Recorder
from equivalence_tests.recordings.replay import compare_recordings
from equivalence_tests.recordings.stages import Outcome
from optax_bridge.torch.checkpoints.names import parse_names

TX = optax.adam(0.1)


def record(path: Path, steps: int = 6, dtype: Any = jnp.float32, **at: Any) -> Path:
    """Records Adam; `at` changes what is recorded: field -> (step, value)."""
    params: Any = {"w": jnp.linspace(-1, 1, 4).astype(dtype), "b": jnp.ones(2, dtype)}
    state = TX.init(params)
    rec = Recorder(path)
    for number in range(steps):
        grads = {"w": params["w"] * 2, "b": params["b"] - 3}
        updates, state = TX.update(grads, state, params)
        new = optax.apply_updates(params, updates)
        fields: dict[str, Any] = {"params": params, "grads": grads, "new_params": new}
        fields |= {name: value for name, (step, value) in at.items() if step == number}
        rec.step(**fields)
        params = new
    return path


def test_new_parameters_may_be_left_out(tmp_path: Path):
    path = tmp_path / "run.rec"
    rec, whole = Recorder(path), read(record(tmp_path / "whole.rec"))
    for step in whole.steps:
        rec.step(**{name: format.nest(step.trees[name]) for name in ("params", "grads")})
    steps = read(path).steps
    assert "new_params" not in steps[-1].trees
    new, following = steps[2].trees["new_params"], steps[3].trees["params"]
    np.testing.assert_array_equal(new["w",], following["w",])
    assert len(assert_replays(path, optimizer=TX).stages[-1].distance) == len(steps) - 1


def test_the_size_is_said_after_the_first_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    params = {"w": np.zeros(250_000, np.float32)}
    Recorder(tmp_path / "run.rec", steps=3000).step(params=params, grads=params)
    assert "run.rec: up to 3000 steps of 2 MB: 6 GB; steps= limits it" in capsys.readouterr().err


def test_parameters_that_the_program_changed_between_steps(tmp_path: Path):
    other = {"w": jnp.full(4, 7.0), "b": jnp.ones(2)}
    steps = read(record(tmp_path / "run.rec", params=(2, other))).steps
    assert set(steps[2].trees["params"]["w",]) == {7} != set(steps[1].trees["new_params"]["w",])
    assert format.nest({("x", 1): 2, ("x", 0): 1}) == {"x": (1, 2)}


@pytest.mark.parametrize("overflow", [None, np.inf, np.nan])
def test_a_step_that_is_skipped_moves_nothing(overflow: Any, tmp_path: Path):
    """A loss scale skips it for gradients that are not finite, which do not end the judgement."""
    params, rates = {"w": jnp.ones(3)}, [0.1, 0.07, 0.02]
    tx = optax.adam(lambda count: jnp.asarray(rates)[count])
    state, rec = tx.init(params), Recorder(tmp_path / "run.rec")
    for number in range(4):
        if number == 1:
            grads = None if overflow is None else {"w": np.array([1, overflow, 2], "f4")}
            rate = rates[1]  # of the next step that is taken
            rec.step(params, grads, params, skipped=True, learning_rate=rate)
            continue
        updates, state = tx.update(params, state, params)
        new = optax.apply_updates(params, updates)
        rec.step(params, params, new, learning_rate=rates[number - (number > 0)])
        params = new
    skipped = [step.skipped for step in read(tmp_path / "run.rec").steps]
    assert skipped == [False, True, False, False]
    judged = assert_replays(tmp_path / "run.rec", optimizer=tx)
    assert (len(judged.stages[-1].distance), judged.remarks) == (4, [])


@pytest.mark.parametrize("packed", [False, True])
def test_bfloat16_is_kept_by_its_bits(packed: bool, tmp_path: Path):
    path = record(tmp_path / "run.rec", dtype=jnp.bfloat16, loss=(1, jnp.bfloat16(1.5)))
    if packed:
        pack({"run": read(path)}, path.with_suffix(".npz"))
        path = path.with_suffix(".npz")
    dtypes = {leaf.dtype for leaf in read(path).steps[1].trees["grads"].values()}
    assert dtypes == {jnp.dtype(jnp.bfloat16)}
    assert read(path).steps[1].loss == 1.5
    assert_replays(path, optimizer=TX)


def test_float64_is_replayed_in_float64(tmp_path: Path):
    rec, w = Recorder(tmp_path / "run.rec"), np.linspace(-1, 1, 4)
    for number in range(4):
        new = w - 0.1 * np.cos(w)
        trees: Any = {"params": {"w": w}, "grads": {"w": np.cos(w)}, "new_params": {"w": new}}
        rec.step(**trees, batch={"x": np.ones(4)} if number < 3 else None)
        w = new
    run = read(tmp_path / "run.rec")
    loss = lambda params, batch: jnp.sin(params["w"] * batch["x"]).sum()  # noqa: E731
    assert_replays(run, optimizer=optax.sgd(0.1), loss=loss)
    batches = replay(run, batches=[{"x": np.ones(4)}] * 4).stages[0]
    assert str(batches) == "batches: identical: in 3 steps"


def test_what_is_not_finite_ends_what_is_judged(tmp_path: Path):
    bad = {"w": jnp.full(4, jnp.nan), "b": jnp.ones(2)}
    result = replay(record(tmp_path / "run.rec", grads=(3, bad)), optimizer=TX)
    assert result.outcome in (Outcome.IDENTICAL, Outcome.ROUNDING)
    text = "grads['w'] is not finite from step 3: the 3 steps before it are judged"
    assert result.remarks == [text]
    result = replay(record(tmp_path / "new.rec", new_params=(2, bad)), optimizer=TX)
    assert result.remarks[0].startswith("new_params['w'] is not finite from step 2")
    with pytest.raises(RecordingError, match="not finite from its first step on"):
        replay(record(tmp_path / "at_once.rec", grads=(0, bad)), optimizer=TX)


def test_leaves_that_come_and_go(tmp_path: Path):
    path = record(tmp_path / "run.rec", params=(4, {"w": jnp.ones(4)}))
    assert "params['b'] appears or disappears at step 4" in str(replay(path, optimizer=TX))
    pack({"run": read(path)}, tmp_path / "run.npz")
    back = read(tmp_path / "run.npz").steps
    assert [sorted(step.trees["params"]) for step in back[3:5]] == [[("b",), ("w",)], [("w",)]]


def test_several_recordings_are_in_a_file(tmp_path: Path):
    run = read(record(tmp_path / "a.rec"))
    pack({"a": run, "b": run}, tmp_path / "two.npz")
    assert (
        compare_recordings(run, read_packed(tmp_path / "two.npz")["b"]).outcome is Outcome.IDENTICAL
    )
    assert list(read_packed(tmp_path / "two.npz")) == ["a", "b"]
    with pytest.raises(RecordingError, match="expected one recording, found a, b"):
        read(tmp_path / "two.npz")


def test_more_than_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = record(tmp_path / "run.rec")
    size = next(path.glob("step-*")).stat().st_size
    monkeypatch.setattr(format, "_memory", lambda: 3 * size)
    with pytest.raises(RecordingError, match=r"6 steps of .* Read the first ones: steps=, or"):
        read(path)
    assert len(replay(path, optimizer=TX, steps=2).stages[-1].distance) == 2


def test_parameters_of_another_model_are_refused(tmp_path: Path):
    path = record(tmp_path / "run.rec")
    with pytest.raises(RecordingError, match="the optimizer raised KeyError"):
        replay(path, optimizer=(lambda params: params["v"], lambda *a: a))


def test_names_and_a_state_of_pytorch_s_are_those_of_flax(tmp_path: Path):
    rng, rec = np.random.default_rng(0), Recorder(tmp_path / "run.rec", first=4)
    names = ("fc.weight", "fc.bias")
    params, grads, trace = (
        {name: rng.standard_normal((2, 3)[: 2 - n]).astype("f4") for n, name in enumerate(names)}
        for _ in range(3)
    )
    new = {n: params[n] - np.float32(0.1) * (grads[n] + np.float32(0.5) * trace[n]) for n in names}
    new["fc.bias"], grads["fc.bias"] = params["fc.bias"], None  # pyright: ignore[reportArgumentType]
    rec._groups = [{"name": "0", "params": [[name] for name in names], "settings": {}}]
    fields = {n: {"momentum_buffer": trace[name]} for n, name in enumerate(names)}
    state = {"state": fields, "param_groups": [{"lr": 0.1, "momentum": 0.5, "params": [0, 1]}]}
    buffers = {"norm.running_mean": np.arange(3.0), "norm.num": np.int64(3)}
    rec.step(params, grads, new, state=state, model_state=buffers)
    file = parse_names({
        "drop": ["norm.num"],
        "names": {
            "fc.weight": {"to": "params/fc/kernel", "as": "o i -> i o"},
            "fc.bias": "params/fc/bias",
            "norm.running_mean": "batch_stats/norm/mean",
        },
    }, "names")  # fmt: skip
    run = read(tmp_path / "run.rec")
    here = in_flax(run, file)
    assert here.index["groups"][0]["params"] == [("fc", "kernel"), ("fc", "bias")]
    trees = here.steps[0].trees
    assert list(trees["model_state"]) == [("batch_stats", "norm", "mean")]
    np.testing.assert_array_equal(trees["params"]["fc", "kernel"], params["fc.weight"].T)
    assert trees["grads"]["fc", "bias"] is None
    restored = recorded_state(run, file)["state"]["param_states"]["fc"]
    np.testing.assert_array_equal(restored["kernel"]["momentum_buffer"], trace["fc.weight"].T)


def test_gradients_that_are_noted_and_then_clipped_in_place_are_both_recorded(tmp_path: Path):
    grads = {"w": np.full(3, 8, np.float32)}
    rec = Recorder(tmp_path / "run.rec")
    with rec.flax(legacy_optim):
        rec.note(raw_grads=grads)
        grads["w"] /= 8
        legacy_optim.GradientDescent(0.1).create({"w": jnp.ones(3)}).apply_gradient(grads)
    trees = read(tmp_path / "run.rec").steps[0].trees
    assert [trees[name]["w",][0] for name in ("raw_grads", "grads")] == [8, 1]


def test_a_state_of_pytorch_is_brought_over_beside_buffers(tmp_path: Path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.02)
    rec = Recorder(tmp_path / "run.rec")
    for number in range(6):
        if number == 2:
            rec.torch(model, optimizer)
        loss = model(torch.eye(3) * (number + 1)).pow(3).sum()
        loss.backward()
        rec.note(loss=loss)
        optimizer.step()
    steps = read(tmp_path / "run.rec").steps
    before = [np.asarray(step.tensors["1.running_var"]) for step in steps[:2]]
    assert (before[0] != before[1]).all()  # each step has the buffers of before it
    result = replay(tmp_path / "run.rec", optimizer=named_side("optax.rmsprop(0.02)"))
    assert "eps_in_sqrt=False) the verdict is rounding only" in result.explanation, result


def test_pytorch_is_recorded_in_mid_training(tmp_path: Path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 2)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "name": "bias"}]
    optimizer = torch.optim.AdamW(groups, lr=0.02, weight_decay=0.0)
    for number in range(8):
        if number == 4:
            Recorder(tmp_path / "run.rec", steps=3).torch(model, optimizer)
        model(torch.full((4, 3), number / 8)).square().sum().backward()
        optimizer.step()
    run = read(tmp_path / "run.rec")
    assert run.first == 4 and len(run.steps) == 3
    assert dict(run.steps[0].rates) == {"0": 0.1, "bias": 0.02}
    kernel = {"to": "params/dense/kernel", "as": "o i -> i o"}
    names = {"names": {"weight": kernel, "bias": "params/dense/bias"}}
    result = replay(run, optimizer=optax.adam(0.1), names=names)
    assert "rate['bias']: recorded 0.02, here 0.1: 5 times" in str(result), result
    assert result.stages[-1].leaf == "params['dense']['bias']" and not result.explanation
    rates: Any = {"bias": optax.adam(0.02), "kernel": optax.adam(0.1)}
    groups = {"dense": {"bias": "bias", "kernel": "kernel"}}
    assert_replays(run, optimizer=optax.partition(rates, groups), names=names)

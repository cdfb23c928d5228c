import contextlib
import functools
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.recorded_test import assert_recorded, refused
from optax_bridge.spmd._testing import KEY, config, run
from optax_bridge.spmd.checkpointer import every_n_steps_policy as saving_policy
from optax_bridge.spmd.config import config_for_class, config_for_function, from_debug_string
from optax_bridge.spmd.evaler import JsonlWriter, SpmdEvaler, every_n_steps_policy
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import ArrayBatches, IteratorInput
from optax_bridge.spmd.layer import ParameterSpec, constant_initializer
from optax_bridge.spmd.learner import Learner
from optax_bridge.spmd.module import functional
from optax_bridge.spmd.summaries import (
    CompositeWriter,
    JsonLinesWriter,
    SummaryWriter,
    WeightedSummary,
)
from optax_bridge.spmd.trainer import SpmdTrainer, UndefinedLossException
from optax_bridge.spmd.trainer.state import transformation_of
from optax_bridge.spmd.trainer.trainer import changed_lines, fields_without_text
from optax_bridge.spmd.trees import flatten_items


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without interruption, with dropout and an average of the parameters."""
    cfg = with_randomness(config(tmp_path_factory.mktemp("whole")))
    losses, trainer = run(cfg)
    return losses, trainer


def with_randomness(cfg):
    cfg.model.dropout.rate = 0.1
    cfg.learner.ema.decay = 0.9
    return cfg


def test_a_run(whole):
    losses, trainer = whole
    assert sorted(losses) == [1, 2, 3, 4, 5, 6] and losses[6] < losses[1]
    assert trainer._jit_train_step()._cache_size() == 1
    state = trainer.train_state
    assert issubclass(type(state), optax_bridge.TrainState)
    assert int(state.step) == trainer.step == 6
    weight = state.params["first"]["weight"]
    assert tuple(weight.sharding.spec) == (None, "model")
    assert state.opt_state["optimizer"].mu["first"]["weight"].sharding == weight.sharding
    assert trainer.model_params_for_eval() is state.opt_state["ema"].ema
    specs, shardings = trainer.trainer_state_specs, trainer.trainer_state_partition_specs
    for (path, leaf), spec, sharding in zip(
        flatten_items(trainer.trainer_state),
        jax.tree.leaves(specs),
        jax.tree.leaves(shardings),
        strict=True,
    ):
        assert (tuple(spec.shape), spec.dtype) == (leaf.shape, leaf.dtype), path
        assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim), path


def test_a_state_takes_the_learners_step_by_itself(whole):
    _, trainer = whole
    state = trainer.train_state
    grads = jax.tree.map(jnp.ones_like, state.params)
    plain = optax_bridge.TrainState.create(
        apply_fn=None, params=state.params, tx=optax_bridge.adam(1e-2)
    ).replace(opt_state=state.opt_state["optimizer"])
    step = jax.jit(lambda state, grads: state.apply_gradients(grads=grads))
    new, expected = step(state, grads), step(plain, grads)
    jax.tree.map(np.testing.assert_array_equal, new.params, expected.params)
    assert int(new.opt_state["ema"].count) == 7
    # And so it does by Optax's protocol, where the step is the update added.
    updates, opt_state = jax.jit(state.tx.update)(grads, state.opt_state, state.params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, opt_state, new.opt_state)
    for before, update, after in zip(
        *map(jax.tree.leaves, (state.params, updates, new.params)), strict=True
    ):
        close(before + update, after)
    with refused(ValueError, "needs the parameters"):
        state.tx.update(grads, state.opt_state)


class KeysOfAStep(Learner):
    """Tells the keys that a step hands out."""

    def forward_and_backward(self, *, fn, inputs, opt_params):
        names = ("param_noise_key", "forward_key")
        keys = [*(inputs[name] for name in names), self.prng_key]
        self.add_summary("keys", jnp.stack(keys))
        return super().forward_and_backward(fn=fn, inputs=inputs, opt_params=opt_params)


def test_the_key_of_a_step_is_split_for_state_noise_forward_pass_and_learner(tmp_path):
    cfg = config(tmp_path, mesh_shape=(1, 1))
    cfg.learner = KeysOfAStep.default_config().set(optimizer=cfg.learner.optimizer)
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
    trainer.init(KEY)
    first, _ = jax.random.split(KEY)
    np.testing.assert_array_equal(trainer.trainer_state.prng_key, first)
    with trainer.mesh_scope():
        batch = trainer.input.global_batch(next(trainer.input.batches(trainer.input_iterator())))
        state, outputs = jax.jit(trainer._train_step)(trainer.trainer_state, batch)
    split = jax.random.split(trainer.trainer_state.prng_key, 4)
    keys = outputs["summaries"]["learner"]["keys"]
    np.testing.assert_array_equal(jnp.stack([state.prng_key, *keys]), split)


class WithMean(regression.Regression):
    """Keeps the mean of its last batch among its parameters."""

    def _create_layer_parameter_specs(self):
        return {"mean": ParameterSpec(shape=(), initializer=constant_initializer(0.0))}

    def forward(self, input_batch):
        assert {x.dtype.name for x in jax.tree.leaves((self.state, input_batch))} == {"bfloat16"}
        self.add_state_update("mean", jnp.mean(input_batch["x"]))
        return super().forward(input_batch)


def test_parameters_that_a_forward_pass_replaces_keep_their_dtype(tmp_path):
    cfg = config(tmp_path, steps=2, mesh_shape=(1, 1), train_dtype=jnp.bfloat16)
    cfg.model = WithMean.default_config().set(dtype=jnp.float32)
    params = run(cfg, devices=1)[1].train_state.params
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.float32)}
    assert params["mean"] != 0


def slow_batches():
    for batch in ArrayBatches(regression.samples(), global_batch_size=16):
        time.sleep(0.05)
        yield batch


def test_the_average_time_of_a_step_is_over_the_steps_since_the_last(tmp_path):
    source = IteratorInput.default_config().set(source=slow_batches)
    cfg = config(tmp_path, steps=6, mesh_shape=(1, 1), log_every_n_steps=2)
    cfg.set(
        input=source, save_input_iterator=False, summary_writer=JsonLinesWriter.default_config()
    )
    run(cfg, devices=1)

    def times():
        file = tmp_path / "summaries" / "train_train" / "summaries.jsonl"
        values = map(json.loads, file.read_text().splitlines())
        return [line["average_step_time"] for line in values if "average_step_time" in line]

    # A batch is read before the step before it is looked at: the last time has one batch less.
    assert len(times()) == 3 and times()[1] >= 0.05
    asked, looked = [], {}

    def source():
        asked.append(time.perf_counter())
        return slow_batches()

    cfg.set(max_step=8).input.source = source
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
    trainer.add_listener(lambda step, loss: looked.update({step: time.perf_counter()}))
    trainer.run(KEY)
    assert times()[-1] >= (looked[8] - asked[0]) / 2


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of such a run that ended after step 3."""
    folder = tmp_path_factory.mktemp("stopped")
    run(with_randomness(config(folder, steps=3)))
    return folder


def test_resumed_to_the_bit(whole, stopped, tmp_path, caplog):
    expected, trainer = whole
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    losses, resumed = run(with_randomness(config(tmp_path)))
    assert "\n- max_step: 3\n" in caplog.text and "\n+ max_step: 6" in caplog.text
    assert losses == {step: x for step, x in expected.items() if step > 3}
    jax.tree.map(np.testing.assert_array_equal, resumed.trainer_state, trainer.trainer_state)
    assert resumed.checkpointer.checkpoint_steps(str(tmp_path / "checkpoints")) == [6]


def test_resumed_on_another_mesh(whole, stopped, tmp_path):
    expected, _ = whole
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    losses, trainer = run(with_randomness(config(tmp_path, mesh_shape=(1, 2))), devices=2)
    for step in (4, 5, 6):  # sums over devices are rounded in another order
        assert losses[step] == pytest.approx(expected[step], rel=1e-5)
    assert dict(trainer.mesh.shape) == {"data": 1, "model": 2}


def test_the_config_beside_a_run_is_that_run(whole, tmp_path):
    expected, trainer = whole
    cfg = from_debug_string(Path(trainer.config.dir, "trainer_config.txt").read_text())
    assert cfg.debug_string() == trainer.config.debug_string()
    text = cfg.debug_string()
    cfg.instantiate(parent=None, devices=jax.devices()[:4])
    assert cfg.debug_string() == text
    table = Path(trainer.config.dir, "model_analysis.txt").read_text().split()
    assert table[-1] == str(sum(x.size for x in jax.tree.leaves(trainer.trainer_state.model)))
    losses, _ = run(cfg.set(dir=str(tmp_path), max_step=2))
    assert losses == {step: expected[step] for step in (1, 2)}


def test_a_default_that_changes_would_change_trainings(recorded):
    classes = (SpmdTrainer, SpmdEvaler, Learner)
    recorded("defaults.txt", {cls.__name__: cls.default_config() for cls in classes})


def poisoned():
    samples = regression.samples(64)
    samples["y"][40] = np.nan
    return samples


def test_a_loss_that_is_not_finite_stops_with_the_state_before(tmp_path):
    cfg = config(tmp_path, save_every=3, mesh_shape=(1, 1))  # and not what step 3 leaves
    cfg.input.set(source=config_for_function(poisoned), shuffle=False)
    with refused(UndefinedLossException, r"step 3: loss is nan.*after step 2") as caught:
        run(cfg, devices=1)
    assert caught.value.step == 3 and math.isnan(caught.value.loss)
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
    with trainer.mesh_scope():
        assert trainer.restore_checkpoint() == 2
    assert trainer.input_iterator().get_state() == {"position": 2}
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(trainer.trainer_state.model))
    with refused(UndefinedLossException, "step 3"):
        run(cfg, devices=1)
    cfg.learner.ignore_undefined_loss = True
    losses, _ = run(cfg, devices=1)
    assert sorted(losses) == [3, 4, 5, 6]
    cfg.learner.ignore_undefined_loss = False
    cfg.checkpointer.save_policy.n = 9
    trainer = cfg.set(dir=str(tmp_path / "b")).instantiate(parent=None, devices=jax.devices()[:1])
    trainer.add_listener(lambda step, loss: step == 2 and trainer.request_stop())
    with refused(UndefinedLossException, "step 3"):
        trainer.run(KEY)
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(trainer.trainer_state.model))


class _WithoutGradients(regression.Regression):
    def forward(self, input_batch):
        loss, aux = super().forward(input_batch)
        return loss + jnp.sqrt(0 * loss), aux


def test_gradients_that_are_not_finite_stop_a_training_whose_loss_is(tmp_path):
    cfg = config(tmp_path, steps=3)
    cfg.model = _WithoutGradients.default_config().set(dtype=jnp.float32)
    with refused(UndefinedLossException, "step 1: the gradients are not finite"):
        run(cfg)


class _WithError(regression.Regression):
    def forward(self, input_batch):
        loss, aux = super().forward(input_batch)
        self.add_summary("error", jnp.mean(jnp.abs(aux["predicted"] - input_batch["y"])))
        self.add_summary("loss", WeightedSummary(2 * loss, len(input_batch["y"])))
        self.add_summary("bytes", jax.tree.leaves(self.state)[0].dtype.itemsize)
        draw = 0.0 if self.prng_key is None else jax.random.uniform(self.prng_key)
        return loss, {**aux, "draw": draw}


def test_evaluation_and_summaries_as_tensorboard_reads_them(tmp_path):
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    evaler = SpmdEvaler.default_config().set(
        input=config(tmp_path).input.clone(num_epochs=1, shuffle=False),
        eval_policy=config_for_function(every_n_steps_policy).set(n=2),
    )
    evaler.input.global_batch_size = 192  # and a batch of 64
    at_last = evaler.clone(eval_dtype=jnp.bfloat16)
    at_last.eval_policy = lambda step, train_summaries: step == 3 and "learner" in train_summaries
    cfg = config(tmp_path, steps=3, mesh_shape=(1, 1), log_every_n_steps=2)
    cfg.evalers = {"all": evaler, "at_last": at_last}
    cfg.model = _WithError.default_config().set(dtype=jnp.float32)
    cfg.checkpointer.keep_last_n = 2
    cfg.checkpointer.save_policy = config_for_function(saving_policy).set(n=2, min_step=0)
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
    outputs = trainer.run(KEY, return_evaler_summaries=True)
    mean, rough = (float(x["loss"].mean) for x in outputs["evaler_summaries"].values())
    assert rough != mean and rough == pytest.approx(mean, rel=0.1)  # in eval_dtype
    assert [x["bytes"].mean for x in outputs["evaler_summaries"].values()] == [4, 2]
    samples = regression.samples()
    with trainer.mesh_scope():
        (loss, aux), _ = functional(
            trainer.model, None, trainer.model_params_for_eval(), (samples,), is_training=False
        )
    assert mean == pytest.approx(2 * float(loss), rel=1e-5)  # its own, not the plain one
    error = float(outputs["evaler_summaries"]["all"]["error"].mean)  # a scalar, not the last one
    assert error == pytest.approx(float(jnp.mean(jnp.abs(aux["predicted"] - samples["y"]))))
    events = reading.EventAccumulator(str(tmp_path / "summaries" / "train_train")).Reload()
    assert {"loss", "learner/gradient_norm", "learner/update_norm"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]
    for name, steps in (("all", [2, 3]), ("at_last", [3])):  # which is not done again
        evaluated = reading.EventAccumulator(str(tmp_path / "summaries" / name)).Reload()
        assert [event.step for event in evaluated.Scalars("loss")] == steps
    assert [event.step for event in events.Scalars("average_step_time")] == [2]
    assert trainer.checkpointer.checkpoint_steps(str(tmp_path / "checkpoints")) == [0, 2]
    given = {"prng_key": KEY, "model_params": trainer.model_params_for_eval()}
    with trainer.mesh_scope():
        own = trainer.evalers["all"]
        assert own.eval_step(3, **given, return_aux=True)[1:] == (None, None)
        _, again, outputs = own.eval_step(3, **given, return_aux=True, force_run=True)
    assert float(again["loss"].mean) == pytest.approx(mean, rel=1e-6)
    first, second = (output["aux"]["draw"] for output in outputs)  # of a batch each
    assert first != second


@pytest.mark.parametrize("steps, each", [([1, 4], 2), ([0, 9], None)])
def test_profiles_cover_the_steps_asked_for(tmp_path, monkeypatch, steps, each):
    running, seen = [], []
    monkeypatch.setattr(jax.profiler, "start_trace", running.append)
    monkeypatch.setattr(jax.profiler, "stop_trace", running.clear)
    cfg = config(tmp_path, start_trace_steps=steps, n_steps_for_each_trace=each)
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:4])
    for step in range(1, 16):  # the one to come
        trainer._loop()._trace(step)
        seen += [step] if running else []
        assert running in ([], [str(tmp_path / "summaries" / "train_train")])
    expected = {first + 1 + more for first in steps for more in range(each or 3)}
    assert set(seen) == expected


@pytest.mark.parametrize("before", [True, False])
def test_an_input_that_begins_anew_is_said(tmp_path, caplog, before):
    one = functools.partial(config, tmp_path, mesh_shape=(1, 1))
    (tmp_path / "trainer_config.txt").write_text("max_step: 9\n")  # of a run that saved nothing
    run(one(steps=1, save_input_iterator=before), devices=1)
    assert "starts over" not in caplog.text and "another config" not in caplog.text
    for now in (True, False):
        caplog.clear()
        cfg = one(steps=2, save_input_iterator=now)
        trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
        with trainer.mesh_scope(), contextlib.closing(trainer.summary_writer):
            assert trainer._prepare_training(KEY)
        assert ("input starts over" in caplog.text) is not (before and now)


class Counted(ArrayBatches):
    def get_state(self):
        return {"count": 3}


def test_only_a_missing_position_begins_anew(tmp_path):
    one = functools.partial(config, tmp_path, mesh_shape=(1, 1))
    cfg = one(steps=1)
    cfg.input = IteratorInput.default_config().set(
        source=lambda: Counted(regression.samples(), global_batch_size=16)
    )
    run(cfg, devices=1)
    with refused(ValueError, r"no position that ArrayBatches.*'count': 3.*input over"):
        run(one(), devices=1)
    cfg.input.source = slow_batches
    with refused(ValueError, "iterator generator has no get_state and set_state"):
        run(cfg, devices=1)
    assert sorted(run(one(save_input_iterator=False), devices=1)[0]) == [2, 3, 4, 5, 6]


def test_a_run_goes_on_from_the_step_that_is_asked_for(whole, tmp_path):
    expected, _ = whole
    cfg = with_randomness(config(tmp_path, steps=6, save_every=1))
    cfg.checkpointer.keep_last_n = 3
    run(cfg)
    losses, _ = run(cfg, restore_step=4)
    assert losses == {step: x for step, x in expected.items() if step > 4}
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    steps = {f"step_0000000{step}" for step in (4, 5, 6)}
    assert names == steps | {"aside_step_00000005", "aside_step_00000006"}
    with refused(ValueError, r"no complete checkpoint of step 3; there are \[4, 5, 6"):
        run(cfg, restore_step=3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_legacy_definition_is_an_optimizer(whole, tmp_path):
    expected, _ = whole
    optimizer: Any = config_for_class(legacy_optim.Adam).set(learning_rate=1e-2)
    cfg = with_randomness(config(tmp_path, steps=3))
    cfg.learner.optimizer = optimizer.instantiate()
    assert run(cfg)[0] == {step: expected[step] for step in (1, 2, 3)}
    params, values = {"w": jnp.arange(3.0)}, []
    for learner in (cfg.learner, cfg.learner.clone(optimizer=optimizer)):
        tx = transformation_of(learner)
        values.append(jax.jit(tx.step)(params, tx.init(params), params)[0]["w"])
    np.testing.assert_array_equal(*values)
    cfg.learner.optimizer = config_for_class(legacy_optim.Adam)
    with refused(ValueError, r"trainer.learner.optimizer: .*has no learning rate"):
        run(cfg)


def test_an_object_without_a_text_is_said(tmp_path):
    cfg = config(tmp_path)
    assert fields_without_text(cfg) == []
    cfg.learner.optimizer = config_for_function(optax.adam).set(learning_rate=1e-3)
    assert fields_without_text(cfg) == []
    cfg.learner.optimizer.learning_rate = optax.linear_schedule(1e-3, 0.0, 9)
    assert fields_without_text(cfg) == ["learner.optimizer.learning_rate"]
    for optimizer in (optax.adam, optax_bridge.torch.adam, legacy_optim.Adam):
        cfg.learner.optimizer = optimizer(1e-3)
        assert fields_without_text(cfg) == ["learner.optimizer"]
        (tmp_path / "trainer_config.txt").write_text(cfg.debug_string())
        kept = cfg.learner.optimizer  # at another address than the next one
        cfg.learner.optimizer = optimizer(1e-3)
        assert changed_lines(tmp_path, cfg) == [], kept


def test_profiles_of_steps_and_of_batches_of_an_evaluation(tmp_path, caplog):
    cfg = config(
        tmp_path, steps=3, mesh_shape=(1, 1), start_trace_steps=[1], n_steps_for_each_trace=1
    )
    batches = cfg.input.clone(num_epochs=1, global_batch_size=64)
    evaler = SpmdEvaler.default_config().set(input=batches, trace_at_iters=[1, 9])  # there are 4
    at = config_for_function(every_n_steps_policy)
    at_2, at_3 = (evaler.clone(eval_policy=at.clone(n=n)) for n in (2, 3))
    run(cfg.set(evalers={"within_the_other": at_2, "all": at_3}), devices=1)
    for name, count in (("train_train", 1), ("within_the_other", 0), ("all", 1)):
        assert len(list((tmp_path / "summaries" / name).rglob("*.xplane.pb"))) == count
    assert "no profile of the evaluation" in caplog.text


def test_the_end_of_the_input_ends_the_run_and_is_said(tmp_path, caplog):
    cfg = config(tmp_path, steps=50, mesh_shape=(1, 1))
    batches = [next(ArrayBatches(regression.samples(), global_batch_size=8))] * 3
    cfg.input = IteratorInput.default_config().set(source=lambda: iter(batches))
    cfg.save_input_iterator = False
    losses, _ = run(cfg, devices=1)
    assert sorted(losses) == [1, 2, 3]
    assert "no more batches after step 3, and max_step is 50" in caplog.text
    cfg.set(dir=str(tmp_path / "empty")).input.source = lambda: iter(())
    with refused(ValueError, r"trainer\.input: expected batches, found none"):
        run(cfg, devices=1)


def test_compiled_from_specs_alone(tmp_path):
    trainer = config(tmp_path).instantiate(parent=None, devices=jax.devices()[:4])
    compiled = trainer.compile_train_step()
    assert compiled.cost_analysis() is not None and trainer.train_state is None


def lines_of(folder: Path) -> list[str]:
    """All that a run wrote, without times; of the checkpoints and events their names."""
    lines = []
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder).as_posix()
        if name.startswith("checkpoints/"):
            lines += [step] if (step := "/".join(name.split("/")[:2])) not in lines else []
        elif "events" in name:
            lines.append(name.split(".")[0])
        elif file.suffix == ".jsonl":
            for text in file.read_text().splitlines():
                values = {k: v for k, v in json.loads(text).items() if "time" not in k}
                lines.append(" ".join([f"{name}:", *(f"{k} {v}" for k, v in values.items())]))
                lines[-1] += f" and {sorted({*json.loads(text)} - {*values})}"
        else:
            lines += [f"{name}: {text}" for text in file.read_text().splitlines()]
    return [line.replace(str(folder), "TMP") for line in lines]


def test_all_that_a_run_writes(tmp_path):
    writer = CompositeWriter.default_config().set(
        writers={"lines": JsonLinesWriter.default_config(), "board": SummaryWriter.default_config()}
    )
    evaler = SpmdEvaler.default_config().set(
        input=config(tmp_path).input.clone(num_epochs=1, shuffle=False, is_training=False),
        eval_policy=config_for_function(every_n_steps_policy).set(n=2),
        summary_writer=writer, output_writer=JsonlWriter.default_config(),
    )  # fmt: skip
    evaler.input.set(source=config_for_function(regression.samples).set(count=5))
    evaler.input.global_batch_size = 4  # and a batch of 1
    cfg = with_randomness(config(tmp_path, steps=3, log_every_n_steps=2))
    cfg.set(evalers={"all": evaler, "none": evaler.clone(eval_policy=lambda **_: False)})
    cfg.model = _WithError.default_config().set(dtype=jnp.float32)
    cfg.learner.enable_per_variable_summaries = True
    cfg.checkpointer.keep_last_n = 2
    run(cfg.set(summary_writer=writer))
    assert_recorded(Path(__file__).with_name("testdata") / "run.json", "run", lines_of(tmp_path))

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

import optax_bridge
from optax_bridge.recorded_test import refused
from optax_bridge.spmd._testing import KEY, config, run
from optax_bridge.spmd.config import REQUIRED, RequiredFieldMissingError, UnknownFieldError
from optax_bridge.spmd.evaler import SpmdEvaler
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.trainer import SavingError
from optax_bridge.spmd.trainer.trainer import lock_folder


class _Vector(regression.Regression):
    def forward(self, input_batch):
        return jnp.square(self.first(input_batch["x"])[:, 0]), {}


class _NoAux(regression.Regression):
    def forward(self, input_batch):
        return jnp.mean(self.first(input_batch["x"]))


class _OtherKey(regression.Regression):
    def forward(self, input_batch):
        return jnp.mean(self.first(input_batch["images"])), {}


class _OtherName(regression.Regression):
    def forward(self, batch):
        return jnp.mean(self.first(batch["x"])), {}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_OtherName, r"forward: expected one argument, input_batch.*_OtherName.forward\(batch"),
        (_Vector, r"forward: expected a scalar loss .*found float32\[16\]"),
        (_NoAux, r"forward: expected \(loss, aux\).*found float32\[\]"),
        (_OtherKey, r"forward: there is no 'images' \(trainer_refusals_test.py, line .*'x', 'y'"),
    ],
)
def test_what_a_model_does_wrong_is_said_of_the_model(tmp_path, model, message):
    cfg = config(tmp_path, mesh_shape=(1, 1))
    cfg.model = model.default_config().set(dtype=jnp.float32)
    with refused(ValueError, message):
        run(cfg, devices=1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model", 3, "child 'model' of .*: expected the config of a module .*, got a int: 3"),
        ("learner", None, "child 'learner' of .*, got a NoneType: None"),
        ("summary_writer", 3, "child 'summary_writer' of .*, got a int: 3"),
        ("evalers", None, "trainer: evalers: expected a dict of configs, found None"),
        ("evalers", {"x": 3}, "child 'x' of .*, got a int: 3"),
    ],
)
def test_a_part_that_is_no_config_is_named(tmp_path, field, value, message):
    with refused(TypeError, message):
        config(tmp_path).set(**{field: value}).instantiate(parent=None, devices=jax.devices()[:4])


class _InTrainingAlone(regression.Regression):
    def forward(self, input_batch):
        if not self.is_training:
            raise ValueError("no evaluation of this")
        return super().forward(input_batch)


def test_an_error_in_an_evaluation_says_which_and_when(tmp_path):
    cfg = config(tmp_path, mesh_shape=(1, 1))
    cfg.model = _InTrainingAlone.default_config().set(dtype=jnp.float32)
    batches = cfg.input.clone(num_epochs=1)
    cfg.evalers = {"all": SpmdEvaler.default_config().set(input=batches)}
    with refused(ValueError, "no evaluation of this"):
        run(cfg, devices=1)


def test_two_runs_do_not_share_a_folder(tmp_path):
    cfg = config(tmp_path, mesh_shape=(1, 1))
    with lock_folder(tmp_path), refused(ValueError, "another run trains in this"):
        run(cfg, devices=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("index", [0, 1])
def test_all_processes_refuse_a_folder_in_use(tmp_path, monkeypatch, index):
    trainer = config(tmp_path, mesh_shape=(1, 1)).instantiate(
        parent=None, devices=jax.devices()[:1]
    )
    told = []

    def broadcast(value):
        told.append(value)
        return np.asarray(True)  # what process 0 found

    monkeypatch.setattr(jax, "process_index", lambda: index)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", broadcast)
    with lock_folder(tmp_path), refused(ValueError, "another run trains in this"):
        trainer.run(KEY)
    assert told == [index == 0]  # process 0 alone looks


def bad_field(cfg):
    cfg.max_steps = 3


@pytest.mark.parametrize(
    "change, error, message",
    [
        (bad_field, UnknownFieldError, "max_step"),
        (lambda c: c.set(mesh_shape=(16, 1)), ValueError, "needs 16 devices, there are 4"),
        (lambda c: c.set(mesh_shape=(-1, -1)), ValueError, "at most one axis"),
        (lambda c: c.set(mesh_shape=(4,)), ValueError, "Give one name for each axis"),
        (lambda c: c.set(batch_axis_names="batch"), ValueError, "'batch'"),
        (lambda c: c.set(mesh_axis_names=("data", "t")), ValueError, "first/bias.*'model' is no a"),
        (lambda c: c.model.set(hidden=5), ValueError, r"first/.*size 5 cannot be divided"),
        (lambda c: c.model.set(dtype=None), ValueError, "model.dtype"),
        (lambda c: c.input.set(global_batch_size=6), ValueError, "'x' has 6 examples"),
        (
            lambda c: setattr(c.learner, "optimizer", optax_bridge.adam()),
            ValueError,
            "learner.optimizer: the optimizer has no learning rate",
        ),
        (
            lambda c: setattr(c.learner, "optimizer", REQUIRED),
            RequiredFieldMissingError,
            r"trainer\.learner: .*optimizer",
        ),
        (lambda c: c.set(dir=__file__), ValueError, "is a file, expected a folder"),
        (lambda c: c.set(max_step=math.nan), ValueError, "max_step is nan, expected a number"),
        (lambda c: c.set(max_step="9"), ValueError, "max_step is '9', expected a number"),
        (lambda c: c.set(prune_empty_state_updates=False), ValueError, "not supported"),
        (lambda c: c.checkpointer.save_policy.set(n=0), ValueError, "n is 0, expected 1 or more"),
    ],
)
def test_bad_input_before_the_first_step(tmp_path, change, error, message):
    cfg = config(tmp_path, mesh_shape=(-1, 1) if "6 examples" in message else (2, 2))
    with refused(error, message):
        change(cfg)
        run(cfg)
    assert not (tmp_path / "checkpoints").exists()


def test_a_checkpoint_of_another_model(tmp_path):
    one = functools.partial(config, tmp_path, mesh_shape=(1, 1))
    run(one(steps=2), devices=1)
    cfg = one()
    cfg.model.hidden = 32
    with refused(ValueError, r"checkpoint tree dtypes or shapes") as caught:
        run(cfg, devices=1)
    assert "+model/first/weight={'dtype': 'float32', 'shape': '(8, 32)'}" in str(caught.value)
    assert "second/bias" not in str(caught.value)
    assert run(one(steps=3), devices=1)[0].keys() == {3}  # nothing was lost


# When a write fails, Orbax leaves tasks on an event loop that it has closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_full_disk_leaves_the_last_checkpoint_whole(tmp_path):
    resource = pytest.importorskip("resource")
    cfg = config(tmp_path, steps=2, mesh_shape=(1, 1))
    cfg.model.hidden = 2**14
    run(cfg, devices=1)
    cfg.max_step = 6
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    jax.config.update("jax_enable_compilation_cache", False)  # which is written to as well
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))  # stands for the end of the disk
    try:
        with pytest.raises(SavingError, match=r"(?s)step 2 is the last, and whole.*Make room"):
            run(cfg, devices=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        jax.config.update("jax_enable_compilation_cache", True)
    assert sorted(run(cfg, devices=1)[0]) == [3, 4, 5, 6]

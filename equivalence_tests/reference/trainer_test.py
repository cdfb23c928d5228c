"""Checkpoints that the genuine flax.optim wrote go on in the trainer of `optax_bridge.spmd`."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
import optax_bridge
from equivalence_tests.recordings.format import nest
from equivalence_tests.reference import load, replay
from equivalence_tests.reference.cases import CHECKPOINTS, Case
from equivalence_tests.reference.reference_test import bound
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.examples import regression
from optax_bridge.spmd.input import IteratorInput
from optax_bridge.spmd.layer import BaseModel, ThirdPartyLayer
from optax_bridge.spmd.learner import Learner
from optax_bridge.spmd.trainer import legacy_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:flax.optim was removed:DeprecationWarning")


class Tree(nn.Module):
    """A module whose parameters are a tree of given shapes, and which returns them."""

    shapes: Any

    @nn.compact
    def __call__(self) -> Any:
        """Each leaf as a parameter, each dict as a module of that name."""
        return {
            name: self.param(name, nn.initializers.zeros, below)
            if isinstance(below, tuple)
            else Tree(below, name=name)()
            for name, below in self.shapes.items()
        }


class Linear(BaseModel):
    """A loss linear in the parameters, so that its gradients are what the batch holds."""

    def __init__(self, cfg: Any, *, parent: Any):
        """Adds the parameters."""
        super().__init__(cfg, parent=parent)
        net = ThirdPartyLayer.default_config().set(module=Tree(cfg.klass.shapes), example_inputs=[])
        self._add_child("net", net)

    def forward(self, input_batch: Any) -> Any:
        """The sum of all products; the gradient of a parameter is its entry of the batch."""
        products = jax.tree.map(lambda p, g: jnp.sum(p * g[0]), self.net(), input_batch)
        return sum(jax.tree.leaves(products)), {}


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in CHECKPOINTS
        if case.rate == "constructor" and case.name.endswith(("adafactor", "multi_optimizer"))
    ],
    ids=lambda case: case.name,
)
def test_a_checkpoint_of_the_genuine_library_goes_on(tmp_path: Any, case: Case) -> None:
    recording = load.recording(case)
    initial, inputs = load.initial(recording), list(load.inputs(recording))
    optimizer = optax_bridge.from_legacy(replay.define(legacy_optim, case.optimizer))
    shapes = jax.tree.map(np.shape, initial)
    batches = [jax.tree.map(lambda g: g[None], gradient) for gradient, _ in inputs]
    cfg: Any = regression.trainer(steps=10**6, save_every=10**6, mesh_shape=(1, 1))
    cfg.set(
        dir=str(tmp_path),
        save_input_iterator=False,
        model=type("Model", (Linear,), {"shapes": shapes}).default_config().set(dtype=jnp.float32),
        learner=Learner.default_config().set(optimizer=optimizer),
        input=IteratorInput.default_config().set(source=lambda: batches),
        init_state_builder=config_for_function(legacy_checkpoint).set(
            path=str(load.checkpoint(case)),
            optimizer=config_for_function(lambda: replay.define(legacy_optim, case.optimizer)),
            below="net/params",
        ),
    )
    trainer = cfg.instantiate(parent=None, devices=jax.devices()[:1])
    losses: dict[int, float] = {}
    trainer.add_listener(losses.__setitem__)
    trainer.run(jax.random.PRNGKey(0))
    before = [initial, *(nest(step.trees["new_params"]) for step in recording.steps)]
    assert len(losses) == len(inputs)

    def assert_near(leaf: Any, expected: Any) -> None:
        atol = bound(recording) * np.max(np.abs(expected), initial=0)
        np.testing.assert_allclose(leaf, expected, rtol=0, atol=atol)

    jax.tree.map(assert_near, trainer.trainer_state.model["net"]["params"], before[-1])
    # The loss of a step is of the parameters before it: so those of every step were right.
    for params, (gradient, _), loss in zip(before[:-1], inputs, losses.values(), strict=True):
        products = [
            np.multiply(*both)
            for both in zip(*map(jax.tree.leaves, (params, gradient)), strict=True)
        ]
        atol = float(bound(recording) * sum(np.sum(np.abs(product)) for product in products))
        assert loss == pytest.approx(float(sum(map(np.sum, products))), rel=0, abs=atol)

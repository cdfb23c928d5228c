"""Optimizer, OptimizerDef and their states: steps, overrides, serialization, replication."""

import collections
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import serialization, struct
from flax.core import FrozenDict
from flax.training import checkpoints

import legacy_optim as optim
from legacy_optim.base import ReplicatedOptimizer
from legacy_optim.momentum import _MomentumHyperParams

ONES = jnp.ones((2, 3))


class Pair(NamedTuple):
    w: Any
    b: Any


@struct.dataclass
class Layer:
    w: Any
    b: Any


TREES = {
    "array": ONES,
    "scalar": jnp.ones(()),
    "empty tree": {},
    "empty array": {"w": jnp.ones((0, 3))},
    "empty sub-dict": {"w": ONES, "c": {}},
    "None": {"w": ONES, "b": None},
    "FrozenDict": FrozenDict({"a": {"w": ONES}}),
    "list": [ONES, {"b": ONES}],
    "tuple": (ONES, (), ONES),
    "NamedTuple": Pair(ONES, {"x": ONES}),
    "dataclass": Layer(ONES, [ONES]),
    "OrderedDict": collections.OrderedDict(z=ONES, a=ONES),
    "NumPy": {"w": np.ones((2, 3), np.float32)},
    "Python scalars": {"w": 1.0, "b": [1.0]},
}
DEFINITIONS = {
    "GradientDescent": optim.GradientDescent(0.1),
    "Momentum": optim.Momentum(0.1),
    "Adam": optim.Adam(0.1),
    "RMSProp": optim.RMSProp(0.1),
    "Adafactor": optim.Adafactor(0.1),
    "WeightNorm": optim.WeightNorm(optim.Momentum(0.1)),
    "MultiOptimizer": optim.MultiOptimizer((optim.t_identity.tree(), optim.Momentum(0.1))),
}


def same(a: Any, b: Any) -> bool:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def trained(definition: optim.OptimizerDef, steps: int = 2) -> optim.Optimizer:
    optimizer = definition.create({"a": {"w": ONES}, "b": jnp.arange(3.0) + 1})
    for _ in range(steps):
        optimizer = optimizer.apply_gradient(optimizer.target)
    return optimizer


def test_any_tree_is_a_target(subtests: pytest.Subtests) -> None:
    def step(trees: dict[str, Any]) -> dict[str, Any]:
        optimizers = {name: optim.Momentum(0.5).create(tree) for name, tree in trees.items()}
        return {name: each.apply_gradient(trees[name]) for name, each in optimizers.items()}

    eager, compiled = step(TREES), jax.jit(step)(TREES)
    for name, tree in TREES.items():
        with subtests.test(name):
            for optimizer in (eager[name], compiled[name]):
                assert jax.tree.structure(optimizer.target) == jax.tree.structure(tree)
                assert same(optimizer.target, jax.tree.map(lambda leaf: leaf - 0.5 * leaf, tree))
                assert optimizer.state.step == 1


def test_overrides_last_for_one_step_and_hyper_params_replaces_all() -> None:
    definition = optim.Momentum(0.1)
    assert definition.update_hyper_params() is definition.hyper_params
    assert definition.update_hyper_params(beta=0.5) == _MomentumHyperParams(0.1, 0.5, 0, False)
    other = _MomentumHyperParams(1.0, 0.0, 0, True)
    assert definition.update_hyper_params(hyper_params=other) is other
    assert definition.update_hyper_params(hyper_params=other, beta=0.5).beta == 0.5
    assert definition.hyper_params == _MomentumHyperParams(0.1, 0.9, 0, False)


def test_a_scalar_gradient_broadcasts() -> None:
    optimizer = optim.GradientDescent(0.5).create({"w": ONES}).apply_gradient({"w": 1.0})
    assert (optimizer.target["w"] == 0.5).all()


def test_rate_may_be_traced() -> None:
    traces = []

    @jax.jit
    def step(optimizer: optim.Optimizer, rate: Any) -> optim.Optimizer:
        traces.append(None)
        return optimizer.apply_gradient(ONES, learning_rate=rate)

    optimizer = optim.GradientDescent().create(ONES)
    assert (step(step(optimizer, 0.5), 0.25).target == 0.25).all()
    assert len(traces) == 1


class TrainingState(struct.PyTreeNode):
    """A program's own state, as most programs of flax.optim's time have one."""

    optimizer: optim.Optimizer
    seen: Any


def test_scan_carries_a_state_that_holds_an_optimizer() -> None:
    def body(state: TrainingState, grad: jax.Array) -> tuple[TrainingState, jax.Array]:
        optimizer = state.optimizer.apply_gradient({"w": grad}, learning_rate=0.25)
        return state.replace(optimizer=optimizer, seen=state.seen + 1), optimizer.state.step

    state = TrainingState(optimizer=optim.GradientDescent().create({"w": ONES}), seen=0)
    state, steps = jax.lax.scan(body, state, jnp.ones((4, 2, 3)))
    assert (state.optimizer.target["w"] == 0).all()
    assert (steps.tolist(), int(state.seen)) == ([1, 2, 3, 4], 4)
    assert serialization.to_state_dict(state)["optimizer"].keys() == {"target", "state"}


@pytest.mark.parametrize("definition", DEFINITIONS.values(), ids=DEFINITIONS)
def test_double_precision(definition: optim.OptimizerDef) -> None:
    jax.config.update("jax_enable_x64", True)
    optimizer = definition.create({"w": jnp.ones((2, 3))}).apply_gradient({"w": jnp.ones((2, 3))})
    assert optimizer.target["w"].dtype == jnp.float64
    assert optimizer.state.step.dtype == jnp.int32


def test_numpy_gradients_keep_their_values() -> None:
    grads = np.ones((2, 3), np.float32)
    optim.Momentum(0.1, weight_decay=0.5).create(np.ones((2, 3), np.float32)).apply_gradient(grads)
    assert (grads == 1).all()


class SignDescent(optim.OptimizerDef):
    """A definition as users write them."""

    def __init__(self, learning_rate: float):
        super().__init__(_MomentumHyperParams(learning_rate, 0.0, 0, False))

    def init_param_state(self, param: Any) -> Any:
        return ()

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> Any:
        return param - hyper_params.learning_rate * jnp.sign(grad), state


class Rates(NamedTuple):
    """Hyper-parameters that are no flax dataclass."""

    learning_rate: float


@pytest.mark.parametrize("hyper_params", [Rates(0.5), SignDescent(0.5).hyper_params], ids=repr)
def test_hyper_params_may_be_of_any_class(hyper_params: Any) -> None:
    definition = SignDescent(9.0)
    definition.hyper_params = hyper_params
    optimizer = definition.create({"w": ONES})
    assert (optimizer.apply_gradient({"w": ONES}).target["w"] == 0.5).all()
    assert (optimizer.apply_gradient({"w": ONES}, hyper_params=Rates(1.0)).target["w"] == 0).all()


def test_definitions_can_be_subclassed() -> None:
    optimizer = SignDescent(0.5).create({"w": ONES}).apply_gradient({"w": -7 * ONES})
    assert (optimizer.target["w"] == 1.5).all()
    own: Any = optim.Adam(0.1).create(ONES)
    assert not hasattr(own, "params")


@pytest.mark.filterwarnings("ignore:(compute_gradient|optimize) is deprecated")
def test_compute_gradient_and_optimize() -> None:
    optimizer = optim.GradientDescent(0.5).create(jnp.array(3.0))
    assert optimizer.compute_gradient(lambda x: x**2) == (9.0, 6.0)
    assert optimizer.compute_gradients(lambda x: (x**2, "aux")) == (9.0, "aux", 6.0)
    new, loss = optimizer.optimize(lambda x: x**2)
    assert (float(new.target), float(loss)) == (0.0, 9.0)
    new, _, aux = optimizer.optimize(lambda x: (x**2, "aux"), learning_rate=0.25)
    assert (float(new.target), aux) == (1.5, "aux")


@pytest.mark.parametrize("name", ["Adam", "WeightNorm", "MultiOptimizer"])
class TestSerialization:
    @pytest.mark.parametrize("orbax", [False, True], ids=["msgpack", "orbax"])
    # Flax says that it will drop these functions; Orbax warns of its own internals.
    @pytest.mark.filterwarnings("ignore")
    def test_checkpoint(self, name: str, tmp_path: Path, orbax: bool) -> None:
        optimizer, fresh = trained(DEFINITIONS[name]), trained(DEFINITIONS[name], steps=0)
        before = flax.config.flax_use_orbax_checkpointing
        flax.config.update("flax_use_orbax_checkpointing", orbax)
        try:
            checkpoints.save_checkpoint(tmp_path, optimizer, step=2)
            assert same(checkpoints.restore_checkpoint(tmp_path, fresh), optimizer)
        finally:
            flax.config.update("flax_use_orbax_checkpointing", before)

    def test_pickle(self, name: str) -> None:
        optimizer = trained(DEFINITIONS[name])
        again = pickle.loads(pickle.dumps(optimizer))
        assert type(again.optimizer_def) is type(optimizer.optimizer_def)
        assert same((again.target, again.state), (optimizer.target, optimizer.state))


@pytest.mark.filterwarnings("ignore:Optimizer.replicate is deprecated")
@pytest.mark.filterwarnings("ignore:.*pmap:DeprecationWarning")
class TestReplicate:
    def test_gradients_are_averaged_over_the_devices(self) -> None:
        count = jax.local_device_count()
        assert count >= 2
        # Powers of two: exact, so compiled and eager steps cannot differ by rounding.
        single = optim.Momentum(0.5, beta=0.5).create({"w": ONES})
        replicated = single.replicate()
        assert replicated.target["w"].shape == (count, 2, 3)
        step = jax.pmap(lambda optimizer, grads: optimizer.apply_gradient(grads), "batch")
        scale = jnp.arange(count, dtype=jnp.float32)[:, None, None]
        for _ in range(2):
            replicated = step(replicated, {"w": scale * ONES})
            single = single.apply_gradient({"w": (count - 1) / 2 * ONES})
        assert same(replicated.unreplicate(), single)
        assert replicated.unreplicate().optimizer_def is single.optimizer_def
        for copy in replicated.target["w"]:
            assert (copy == replicated.target["w"][0]).all()

    def test_one_copy_is_saved_and_restored_to_all_devices(self) -> None:
        single = optim.Adam(0.1).create({"w": 2 * ONES}).apply_gradient({"w": ONES})
        replicated = single.replicate(jax.local_devices()[:2], axis_name="i")
        assert isinstance(replicated.optimizer_def, ReplicatedOptimizer)
        assert replicated.optimizer_def.hyper_params is single.optimizer_def.hyper_params
        assert same(
            replicated.optimizer_def.init_state({"w": ONES}), optim.Adam().create({"w": ONES}).state
        )
        saved = serialization.to_state_dict(replicated)
        assert saved["target"]["w"].shape == (2, 3)
        blank = jax.tree.map(jnp.zeros_like, replicated)
        saved_bytes = serialization.to_bytes(replicated)
        restored: Any = serialization.from_bytes(blank, saved_bytes)
        assert same(restored, replicated)
        assert restored.target["w"].devices() == set(jax.local_devices()[:2])

    def test_overrides_reach_the_definition(self) -> None:
        devices = jax.local_devices()[:2]
        replicated = optim.GradientDescent().create(ONES).replicate(devices, axis_name="i")
        step = jax.pmap(
            lambda optimizer, grads: optimizer.apply_gradient(grads, learning_rate=0.5),
            "i",
            devices=devices,
        )
        assert (step(replicated, jnp.stack([ONES, ONES])).unreplicate().target == 0.5).all()

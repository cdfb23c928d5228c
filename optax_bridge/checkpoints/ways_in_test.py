"""Whatever restores or converts takes, refuses and says the same of a damaged checkpoint."""

import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import serialization

import legacy_optim
import optax_bridge
from optax_bridge import CheckpointError, TrainState, from_legacy
from optax_bridge.checkpoints import (
    ConvertedWarning,
    convert_file,
    from_bytes,
    from_state_dict,
    restore_checkpoint,
)
from optax_bridge.checkpoints.convert_test import same_bits
from optax_bridge.checkpoints.testdata.write_t5x import write_t5x
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused

# Of Orbax, which is told of no mesh.
pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")

PARAMS = {"kernel": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "bias": jnp.ones(3)}
KERNELS = legacy_optim.ModelParamTraversal(lambda path, _: "kernel" in path)
BIASES = legacy_optim.ModelParamTraversal(lambda path, _: "bias" in path)
# The biases' group keeps nothing for a parameter.
DEFINITION = legacy_optim.MultiOptimizer(
    (KERNELS, legacy_optim.Adam(0.1)), (BIASES, legacy_optim.GradientDescent(0.1))
)


@functools.cache
def optimizer() -> Any:
    return DEFINITION.create(PARAMS).apply_gradient(PARAMS)


def template() -> Any:
    return TrainState.create(apply_fn=None, params=PARAMS, tx=from_legacy(DEFINITION))


def new_state_of(tree: Any) -> Any:
    """The state dict of a TrainState with what is wrong in one of an optimizer."""
    state = serialization.to_state_dict(TrainState.from_legacy(optimizer()))
    fields = tree["state"]["param_states"]["kernel"]
    state["opt_state"]["inner"]["0"]["mu"]["kernel"] = fields["grad_ema"]
    state["opt_state"]["inner"]["0"]["nu"]["kernel"] = fields["grad_sq_ema"]
    return state | {"params": tree["target"], "step": tree["state"]["step"]}


def written(path: Path, tree: Any) -> Path:
    (path / "checkpoint_1").write_bytes(serialization.msgpack_serialize(tree, in_place=True))
    return path / "checkpoint_1"


def by_t5x(path: Path, tree: Any, **options: Any) -> Any:
    write_t5x(path / "checkpoint_1", tree)
    return restore_checkpoint(path, template(), **options)


def by_npz(path: Path, tree: Any, **options: Any) -> Any:
    np.savez(path / "old.npz", **{f"opt/{'/'.join(names)}": v for names, v in leaves(tree)})
    return restore_checkpoint(path / "old.npz", template(), **options)


def by_orbax(path: Path, tree: Any, **options: Any) -> Any:
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(path / "checkpoint_1", new_state_of(tree))
    return restore_checkpoint(path, template(), **options)


def by_convert(path: Path, tree: Any, **options: Any) -> Any:
    convert_file(written(path, tree), path / "new", DEFINITION, recipe="exact", **options)
    return restore_checkpoint(path / "new", template(), **options)


def by_convert_like(path: Path, tree: Any, **options: Any) -> Any:
    convert_file(written(path, tree), path / "new", like=template(), **options)
    return restore_checkpoint(path / "new", template(), **options)


WAYS: dict[str, Callable[..., Any]] = {
    "restore_checkpoint": lambda path, tree, **o: restore_checkpoint(
        written(path, tree), template(), **o
    ),
    "new msgpack": lambda path, tree, **o: restore_checkpoint(
        written(path, new_state_of(tree)), template(), **o
    ),
    "from_bytes": lambda path, tree, **o: from_bytes(
        template(), written(path, tree).read_bytes(), **o
    ),
    "from_state_dict": lambda path, tree, **o: from_state_dict(template(), tree, **o),
    "from_legacy_checkpoint": lambda path, tree, **o: TrainState.from_legacy_checkpoint(
        written(path, tree), optimizer_def=DEFINITION, **o
    ),
    "convert_state": lambda path, tree, **o: optax_bridge.convert_state(tree, DEFINITION, **o),
    "convert": by_convert,
    "convert --like": by_convert_like,
    "T5X": by_t5x,
    "npz": by_npz,
    "Orbax": by_orbax,
}


def changed(path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    tree = serialization.msgpack_restore(serialization.to_bytes(optimizer()))
    node = tree
    for name in path[:-1]:
        node = node[name]
    node[path[-1]] = change(node[path[-1]])
    return tree


def filled(number: float) -> Callable[[Any], Any]:
    def change(array: Any) -> Any:
        array = np.array(array)
        array.flat[-1] = number
        return array

    return change


def negative(array: Any) -> Any:
    return -np.ones_like(array)


MOMENT = ("state", "param_states", "kernel", "grad_ema")
SQUARES = (*MOMENT[:-1], "grad_sq_ema")
STEP = ("state", "step")
NOT_FINITE = {
    "NaN in a parameter": (("target", "kernel"), filled(np.nan), "NaN"),
    "NaN in one without moments": (("target", "bias"), filled(np.nan), "NaN"),
    "infinity in a parameter": (("target", "bias"), filled(-np.inf), "infinity"),
    "NaN in a moment": (MOMENT, filled(np.nan), "NaN"),
    "infinity in a moment": (MOMENT, filled(np.inf), "infinity"),
}
REFUSED = {
    **{name: (*damage, f"{found}.*allow_nan") for name, (*damage, found) in NOT_FINITE.items()},
    "a negative mean of squares": (SQUARES, negative, "0 or more.*of squares"),
    "step that wraps to 0": (STEP, lambda _: np.int64(2**40), "number of steps|int64"),
    "step below 0": (STEP, lambda _: np.int32(-1), "number of steps"),
    "step after which there is none": (STEP, lambda _: np.int32(2**31 - 1), "number of steps"),
    "integers": (("target", "bias"), lambda x: x.astype(np.int32), "int32"),
    "truth values": (("target", "bias"), lambda x: x.astype(bool), "bool"),
}  # fmt: skip


# Every damage by one way, and by every way those that are looked for in values, and one in types.
MAIN_WAY = "restore_checkpoint"
EVERYWHERE = ("NaN in a moment", "a negative mean of squares", "step that wraps to 0")


@pytest.mark.parametrize(
    ("way", "damage"),
    [
        (way, damage)
        for way in WAYS
        for damage in REFUSED
        if way == MAIN_WAY or damage in EVERYWHERE
    ],
)
def test_every_way_in_refuses_the_same(way: str, damage: str, tmp_path: Path) -> None:
    path, change, said = REFUSED[damage]
    with refused(CheckpointError, said) as error:
        WAYS[way](tmp_path, changed(path, change))
    own = {"grad_ema": "mu", "grad_sq_ema": "nu", "target": "params"}
    names = [path[-1], own.get(path[-1], "step")]
    assert any(f"['{name}']" in str(error.value) for name in names)


@pytest.mark.parametrize(
    ("way", "damage"),
    [(w, d) for w in WAYS for d in NOT_FINITE if w == MAIN_WAY or d == "NaN in a moment"],
)
def test_what_is_not_finite_is_let_through_where_asked(
    way: str, damage: str, tmp_path: Path
) -> None:
    path, change, _ = NOT_FINITE[damage]
    tree = changed(path, change)
    state = WAYS[way](tmp_path, tree, allow_nan=True)
    same_bits(state.params, tree["target"])
    moments = state.opt_state.inner[0].mu["kernel"]
    np.testing.assert_array_equal(moments, tree["state"]["param_states"]["kernel"]["grad_ema"])


@pytest.mark.parametrize("way", [MAIN_WAY, "new msgpack", "Orbax"])
def test_one_parameter_in_half_precision_is_refused(way: str, tmp_path: Path) -> None:
    tree = changed(("target", "bias"), lambda x: x.astype(np.float16))
    with refused(CheckpointError, r"\['bias'\].*x\.astype\(jnp\.float16\)"):
        WAYS[way](tmp_path, tree)


HALVES = legacy_optim.Momentum(0.1)


@pytest.mark.parametrize(("dtype", "old"), [(jnp.bfloat16, True), (jnp.float16, False)])
def test_a_training_in_half_precision_is_taken_as_it_is_and_said(dtype: Any, old: bool) -> None:
    params = {name: leaf.astype(dtype) for name, leaf in PARAMS.items()}
    trained = HALVES.create(params).apply_gradient(params)
    expected = TrainState.from_legacy(trained)
    fresh = TrainState.create(apply_fn=None, params=PARAMS, tx=from_legacy(HALVES))
    saved = serialization.to_state_dict(trained if old else expected)
    with pytest.warns(ConvertedWarning, match=f"float32 to {np.dtype(dtype).name}"):
        state = from_state_dict(fresh, saved)
    same_bits((state.params, state.opt_state), (expected.params, expected.opt_state))


BESIDE = {
    "float16": (np.zeros(2, np.float32), np.ones(2, np.float16), True),
    "float64 that keeps": (np.zeros(2, np.float32), np.ones(2), True),
    "float64 that rounds": (np.zeros(2, np.float32), np.full(2, 0.1), None),
    "int32": (np.zeros(2, np.float32), np.ones(2, np.int32), None),
    "bool": (np.zeros(2, np.float32), np.ones(2, bool), None),
    "text": (3, "three", None),
    "bytes": (np.zeros((), np.int32), b"3", None),
    "an integer of another width": (np.zeros((), np.int32), np.int64(7), False),
    "an integer that is too large": (np.zeros((), np.int32), np.int64(2**40), None),
    "a number for a number": (0, np.float32(0.5), False),
    "a truth value for a number": (0.0, True, None),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_stands_beside_a_state_is_of_the_templates_type(case: str) -> None:
    """Taken where it keeps its value, said where it is converted, else refused."""
    own, found, is_said = BESIDE[case]
    saved = {"state": serialization.to_state_dict(optimizer()), "extra": found}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if is_said is None:
            with refused(CheckpointError, r"\['extra'\]"):
                from_state_dict({"state": template(), "extra": own}, saved)
            return
        restored = from_state_dict({"state": template(), "extra": own}, saved)["extra"]
    np.testing.assert_array_equal(restored, found)
    assert not hasattr(own, "dtype") or np.asarray(restored).dtype == own.dtype
    assert any(issubclass(w.category, ConvertedWarning) for w in caught) == is_said


def test_a_number_that_begins_infinite_may_be_infinite() -> None:
    """The best value of a plateau, which no step has reached yet."""
    chain = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau())
    state = TrainState.create(apply_fn=None, params=PARAMS, tx=chain)
    saved = serialization.to_state_dict(state)
    same_bits(from_state_dict(state, saved).opt_state, state.opt_state)

"""What `flax.optim` saved, restored into states: the next step is the one that would have come."""

import functools
import tempfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import serialization, struct
from flax.core import freeze

import legacy_optim as optim
import optax_bridge
from optax_bridge import CheckpointError, FullTrainState, TrainState
from optax_bridge.checkpoints import (
    LeftOverWarning,
    convert_file,
    from_bytes,
    from_state_dict,
    restore_checkpoint,
)
from optax_bridge.checkpoints.values import one_copy
from optax_bridge.metadata.paths import leaves
from optax_bridge.recorded_test import refused

PARAMS = {"dense": {"kernel": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3), "bias": jnp.ones(3)}}
GRADS = jax.tree.map(jnp.cos, PARAMS)
ADAM = optim.Adam(0.1)


@functools.cache
def trained() -> Any:
    """An optimizer that has taken two steps."""
    optimizer = ADAM.create(PARAMS)
    return optimizer.apply_gradient(GRADS).apply_gradient(GRADS)


def fresh(tx: Any = None, params: Any = PARAMS, **fields: Any) -> Any:
    """A state at step 0 with other parameters."""
    params = jax.tree.map(jnp.zeros_like, params)
    cls = FullTrainState if fields else TrainState
    return cls.create(apply_fn=None, params=params, tx=tx or optax.adam(0.1), **fields)


def replicated(tree: Any, copies: int) -> Any:
    return jax.tree.map(lambda leaf: np.stack([leaf] * copies), tree)


def same_bits(one: Any, other: Any) -> None:
    left, right = (jax.tree_util.tree_leaves_with_path(tree) for tree in (one, other))
    assert [path for path, _ in left] == [path for path, _ in right]
    for (path, a), (_, b) in zip(left, right, strict=True):
        assert a.dtype == b.dtype, path
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), path


def assert_taken_over(state: Any) -> None:
    """The state is the one that the trained optimizer stands for."""
    taken = TrainState.from_legacy(trained(), exact=False)
    for name in ("step", "params", "opt_state"):
        same_bits(getattr(state, name), getattr(taken, name))


def test_bytes_that_are_damaged_are_refused_as_a_file_is(subtests: pytest.Subtests) -> None:
    data = serialization.to_bytes(trained())
    for case, damaged in {"cut": data[:-30], "more": data + b"xx", "empty": b""}.items():
        with subtests.test(case), refused(CheckpointError, "damaged or was cut short"):
            from_bytes(fresh(), damaged)
    assert from_bytes(fresh(), data).params["dense"]["bias"].flags.writeable  # no view of bytes


class Experiment(struct.PyTreeNode):
    """A state of a program's own."""

    step: int
    optimizer: Any
    model_state: Any = None


STATS = {"batch_stats": {"mean": np.arange(3.0)}}
NO_STATS = {"batch_stats": {"mean": np.zeros(3)}}
LAYOUTS = {
    "bare": (lambda o: o, lambda s: s, lambda r: [r]),
    "dataclass": (
        lambda o: Experiment(2, o, STATS),
        lambda s: Experiment(0, s, NO_STATS),
        lambda r: [r.optimizer, (r.step, 2), (r.model_state["batch_stats"]["mean"][2], 2.0)],
    ),
    "nested": (
        lambda o: {"best": 0.5, "run": Experiment(2, o)},
        lambda s: {"best": 0.0, "run": Experiment(0, s)},
        lambda r: [r["run"].optimizer, (r["best"], 0.5)],
    ),
    "tuple": (lambda o: (o, 7), lambda s: (s, 0), lambda r: [r[0], (r[1], 7)]),
    "two in a list": (lambda o: [o, o], lambda s: [s, s], lambda r: r),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_optimizer_is_found_where_the_template_has_a_state(layout: str, tmp_path: Path) -> None:
    saved, template, contents = LAYOUTS[layout]
    (tmp_path / "ckpt_2").write_bytes(serialization.to_bytes(saved(trained())))
    (tmp_path / "ckpt_10").write_bytes(serialization.to_bytes(saved(ADAM.create(PARAMS))))
    for step in (2, None):
        restored = restore_checkpoint(tmp_path, template(fresh()), step, prefix="ckpt_")
        for item in contents(restored):
            if isinstance(item, tuple):
                assert item[0] == item[1]
            elif step is None:
                assert int(item.step) == 0
            else:
                assert_taken_over(item)


@pytest.mark.parametrize("copies", [None, 2], ids=str)
@pytest.mark.parametrize("saved_copies", [None, 2], ids=str)
def test_copies_for_devices_come_once_or_as_many_as_they_are(
    copies: int | None, saved_copies: int | None
) -> None:
    saved: Any = {"optimizer": trained(), "epoch": np.asarray(4)}
    template: Any = {"optimizer": fresh(), "epoch": np.asarray(0)}
    saved = replicated(saved, saved_copies) if saved_copies else saved
    template = replicated(template, copies) if copies else template
    if copies and not saved_copies:
        with refused(CheckpointError, r"replicated, a copy for each.*unreplicate"):
            from_bytes(template, serialization.to_bytes(saved))
        return
    restored = from_bytes(template, serialization.to_bytes(saved))
    for copy in range(copies or 1):
        one = jax.tree.map(lambda leaf, copy=copy: leaf[copy], restored) if copies else restored
        assert_taken_over(one["optimizer"])
        assert one["epoch"] == 4
    if saved_copies and not copies:
        saved["epoch"][1] = 5
        for epoch, message in (
            (saved["epoch"], "equal copies, as when replicated"),
            (np.full(3, 4), ""),
        ):
            with refused(CheckpointError, rf"\['epoch'\].*{message}"):
                from_bytes(template, serialization.to_bytes({**saved, "epoch": epoch}))
        once = from_bytes(
            {"optimizer": fresh(), "epoch": 0}, serialization.to_bytes({**saved, "epoch": 4})
        )
        assert type(once["epoch"]) is int and once["epoch"] == 4


CHAINS = {
    "clipped": (lambda: optax.chain(optax.clip(1.0), optax.adam(0.1)), []),
    "schedule": (lambda: optax.adam(optax.constant_schedule(0.1)), []),
    "injected": (lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1), []),
    "masked": (lambda: optax.masked(optax.adam(0.1), True), []),
    "partition": (lambda: optax.partition({"a": optax.adam(0.1)}, lambda p: _labels(p)), []),
    "every": (lambda: optax.MultiSteps(optax.adam(0.1), 2), ["mini_step", "acc_grads"]),
    "if finite": (lambda: optax.apply_if_finite(optax.adam(0.1), 2), ["last_finite"]),
    "average": (lambda: optax.chain(optax.adam(0.1), optax.ema(0.9)), ["['1']['ema']"]),
}


def _labels(params: Any) -> Any:
    return jax.tree.map(lambda _: "a", params)


@pytest.mark.parametrize("chain", CHAINS)
def test_moments_are_found_in_chains_and_what_no_file_has_is_named(chain: str) -> None:
    make, missing = CHAINS[chain]
    tx, saved = make(), serialization.to_state_dict(trained())
    template = fresh(tx)
    if missing:
        with pytest.raises(CheckpointError) as error:
            from_state_dict(template, saved)
        assert all(name in str(error.value) for name in missing)
        assert "missing='keep'" in str(error.value)
    state = from_state_dict(template, saved, missing="keep" if missing else "error")
    found = jax.tree_util.tree_leaves_with_path(state.opt_state)
    counts = [leaf for path, leaf in found if jax.tree_util.keystr(path).endswith(".count")]
    assert counts and all(count == 2 for count in counts)
    moments = [leaf for _, leaf in found if np.shape(leaf) == (2, 3)]
    grad_ema = trained().state.param_states["dense"]["kernel"].grad_ema
    assert any(np.array_equal(moment, grad_ema) for moment in moments)


class Own(optim.OptimizerDef):
    """A definition of a program's own."""

    def __init__(self) -> None:
        super().__init__(struct.dataclass(type("Hyper", (), {}))())

    def init_param_state(self, param: Any) -> Any:
        return {"old": jnp.zeros_like(param)}

    def apply_param_gradient(
        self, step: Any, hyper_params: Any, param: Any, state: Any, grad: Any
    ) -> Any:
        return param - 0.1 * grad - state["old"], {"old": grad}


def test_a_definition_of_ones_own_is_restored_by_its_fields() -> None:
    optimizer = Own().create(PARAMS).apply_gradient(GRADS)
    state = from_bytes(
        fresh(optax_bridge.wrap_definition(Own())), serialization.to_bytes(optimizer)
    )
    same_bits(state.opt_state, optimizer.state)
    same_bits(state.params, optimizer.target)
    with refused(ValueError, "the learning rate is given per call"):
        _ = state.learning_rate


def test_groups_of_before_flax_0_3_3() -> None:
    kernel, bias = (optim.ModelParamTraversal(lambda p, _, n=n: n in p) for n in ("kern", "bias"))
    tx = optax_bridge.multi_optimizer((bias, optax.adam(0.1)), (kernel, optax.sgd(0.1, 0.9)))
    states = trained().state.param_states["dense"]
    trace = {"momentum": states["kernel"].grad_ema}
    groups = [{"0": serialization.to_state_dict(states["bias"])}, {"0": trace}]

    def saved(*groups: Any) -> Any:
        state = {str(i): {"step": np.int32(2), "param_states": g} for i, g in enumerate(groups)}
        return {"target": trained().target, "state": state}

    restored = from_state_dict(fresh(tx), saved(*groups))
    assert int(restored.opt_state.count) == 2
    same_bits(restored.opt_state.inner[0][0].mu, {"dense": {"bias": states["bias"].grad_ema}})
    same_bits(restored.opt_state.inner[1][0].trace, {"dense": {"kernel": trace["momentum"]}})
    only = from_state_dict(
        fresh(optax_bridge.multi_optimizer((bias, optax.adam(0.1)))), saved(groups[0])
    )
    same_bits(only.opt_state.inner[0][0].mu, {"dense": {"bias": states["bias"].grad_ema}})
    tx = optax_bridge.multi_optimizer((bias, optax.adam(0.1)), (kernel, optax.sgd(0.1)))
    restored = from_state_dict(fresh(tx), saved(groups[0], {"0": {}}))  # which keeps nothing
    same_bits(restored.opt_state.inner[0][0].mu, {"dense": {"bias": states["bias"].grad_ema}})


def test_a_trace_after_the_scaling_is_not_taken_for_the_momentum() -> None:
    optimizer = optim.Momentum(0.1).create(PARAMS).apply_gradient(GRADS)
    for tx in (optax.chain(optax.scale(-0.1), optax.trace(0.9)), optax.trace(0.9)):
        with refused(CheckpointError, "before the step is scaled"):
            from_state_dict(fresh(tx), serialization.to_state_dict(optimizer))


def test_what_a_program_put_into_the_dict_of_an_optimizer_is_listed() -> None:
    saved = serialization.to_state_dict(trained()) | {"flax_mutables": STATS}
    with pytest.warns(LeftOverWarning, match="flax_mutables") as warned:
        state = from_state_dict(fresh(), saved)
    assert warned[0].filename == __file__
    assert_taken_over(state)
    beside = {"optimizer": serialization.to_state_dict(trained()), "note": np.ones(1)}
    with pytest.warns(LeftOverWarning, match="note"):
        from_state_dict(fresh(), beside)
    saved = serialization.to_state_dict(state) | {"flax_mutables": STATS}
    with refused(CheckpointError, r"\['flax_mutables'\].* in addition"):
        from_state_dict(fresh(), saved)


def experiment() -> Any:
    beside = {"model_state": STATS, "epoch": np.int32(3), "tokens_seen": np.int32(5)}
    return serialization.to_state_dict({"optimizer": trained(), **beside})


def changed(path: tuple[str, ...], change: str) -> Any:
    """The state dict of an old program with a leaf that is changed."""

    def copied(node: Any) -> Any:
        return {k: copied(v) for k, v in node.items()} if isinstance(node, dict) else node

    tree = level = copied(experiment())
    for name in path[:-1]:
        level = level[name]
    leaf = level[path[-1]] if change in ("added", "reshaped") else level.pop(path[-1])
    if change == "reshaped":
        level[path[-1]] = leaf[None]
    elif change != "deleted":
        level[f"{path[-1]}_too"] = leaf
    return tree


def by_template(tree: Any) -> Any:
    template = {"optimizer": fresh(), "model_state": NO_STATS, "epoch": 0, "tokens_seen": 0}
    return from_state_dict(template, tree)


def by_class(tree: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "checkpoint_2")
        file.write_bytes(serialization.msgpack_serialize(tree))
        return WithEpoch.from_legacy_checkpoint(file, optimizer_def=ADAM)


class WithEpoch(optax_bridge.FullTrainState):
    """A state with a place for all that the old program saved, whatever its name."""

    epoch: Any = None
    tokens_seen: Any = None


LEAVES = [path for path, _ in leaves(experiment())]


@pytest.mark.parametrize("change", ["deleted", "renamed", "added", "reshaped"])
@pytest.mark.parametrize("way", [by_template, by_class])
def test_no_leaf_of_an_old_program_is_lost_unsaid(way: Any, change: str) -> None:
    restored = way(experiment())  # which has a place for each
    assert (restored["tokens_seen"] if way is by_template else restored.tokens_seen) == 5
    for path in LEAVES:
        # Without a template nothing says what there should be beside the optimizer.
        if way is by_template or path[0] == "optimizer":
            with pytest.raises((CheckpointError, LeftOverWarning)):
                way(changed(path, change))


KEY = jax.random.PRNGKey(3)
COLLECTIONS = {
    "model_state": ({"model_state": STATS}, "batch_stats", STATS["batch_stats"]),
    "flat model_state": (
        {"model_state": STATS["batch_stats"]},
        "batch_stats",
        STATS["batch_stats"],
    ),
    "batch_stats": ({"batch_stats": STATS["batch_stats"]}, "batch_stats", STATS["batch_stats"]),
    "nested batch_stats": ({"batch_stats": STATS}, "batch_stats", STATS["batch_stats"]),
    "ema_params": ({"ema_params": PARAMS}, "ema_params", PARAMS),
    "ema of variables": ({"ema": {"params": PARAMS}}, "ema_params", PARAMS),
    "prng_key": ({"prng_key": KEY}, "rngs", {"prng_key": KEY}),
    "dropout_rng": ({"dropout_rng": KEY}, "rngs", {"dropout": KEY}),
    "rngs": ({"rngs": {"noise": KEY}}, "rngs", {"noise": KEY}),
    "rngs of one": ({"rngs": KEY}, "rngs", {"rngs": KEY}),
}


@pytest.mark.parametrize("name", COLLECTIONS)
def test_collections_fill_the_fields_that_they_are_of(name: str, tmp_path: Path) -> None:
    beside, field, expected = COLLECTIONS[name]
    data = serialization.to_bytes({"optimizer": trained(), "step": 2, **beside})
    (tmp_path / "checkpoint_2").write_bytes(data)
    state: Any = FullTrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAM, ema_decay=0.9)
    same_bits(getattr(state, field), expected)
    zeros = jax.tree.map(np.zeros_like, expected)
    given: Any = FullTrainState.from_legacy_checkpoint(
        tmp_path, optimizer_def=ADAM, **{field: zeros}
    )
    same_bits(getattr(given, field), zeros)
    decay = {"ema_decay": 0.9} if field == "ema_params" else {}
    template = fresh(**{field: zeros}, **decay)
    restored = from_bytes(template, data)
    same_bits(getattr(restored, field), expected)
    assert_taken_over(restored)
    if field == "ema_params":
        ill = {"optimizer": trained(), field: jax.tree.map(lambda x: x * np.nan, PARAMS)}
        with refused(CheckpointError, "NaN for finite numbers"):
            from_state_dict(template, serialization.to_state_dict(ill))
    if field == "rngs":  # one key is the one key, whatever it is called
        restored = from_bytes(fresh(rngs={"own": np.zeros_like(KEY)}), data)
        same_bits(restored.rngs, {"own": KEY})
        two = {"optimizer": trained(), "rngs": {"a": KEY, "b": KEY}}
        with refused(CheckpointError, r"no \['rngs'\]\['c'\]"):
            from_bytes(fresh(rngs={"b": KEY, "c": KEY}), serialization.to_bytes(two))


class WithModelState(TrainState):
    model_state: Any = None


def test_statistics_fill_a_field_of_all_collections(tmp_path: Path) -> None:
    data = serialization.to_bytes({"optimizer": trained(), **STATS})
    (tmp_path / "checkpoint_2").write_bytes(data)
    state: Any = WithModelState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAM)
    same_bits(state.model_state, STATS)


def test_a_loss_scale_keeps_its_settings_and_takes_its_state(tmp_path: Path) -> None:
    scale = optim.DynamicScale(scale=jnp.float32(8.0), fin_steps=jnp.int32(1))
    data = serialization.to_bytes({"optimizer": trained(), "dynamic_scale": scale})
    (tmp_path / "checkpoint_2").write_bytes(data)
    own = optim.DynamicScale(growth_interval=7)
    state: Any = FullTrainState.from_legacy_checkpoint(
        tmp_path, optimizer_def=ADAM, dynamic_scale=own
    )
    for restored in (state, from_bytes(fresh(dynamic_scale=own), data)):
        assert restored.dynamic_scale.growth_interval == 7
        assert (restored.dynamic_scale.scale, restored.dynamic_scale.fin_steps) == (8.0, 1)


@pytest.mark.parametrize(
    ("beside", "message"),
    [
        ({"best": 0.5}, r"\['best'\] left over"),
        ({"global_step": 9}, r"\['global_step'\] left over"),
        ({"model_state": {**STATS, "cache": np.ones(2)}}, r"\['model_state'\]\['cache'\]"),
        ({"model_state": {**STATS, "spectral": np.ones(2)}}, r"\['model_state'\]\['spectral'\]"),
        ({"ema_params": {"other": np.ones(2)}}, r"\['ema_params'\]\['other'\]"),
        ({"ema": jax.tree.map(lambda x: x[None], PARAMS)}, r"\['ema'\]\['dense'\]"),
        ({"dynamic_scale": {"other": np.ones(2)}}, r"\['dynamic_scale'\]\['other'\]"),
        ({"ema_params": PARAMS}, "no longer updated: .* Pass ema_decay="),
    ],
    ids=["best", "step", "another", "a later one", "other names", "shapes", "scale", "no decay"],
)
def test_what_fills_no_field_is_listed(beside: Any, message: str, tmp_path: Path) -> None:
    data = serialization.to_bytes({"optimizer": trained(), **beside})
    (tmp_path / "checkpoint_2").write_bytes(data)
    with pytest.warns(LeftOverWarning, match=message):
        FullTrainState.from_legacy_checkpoint(tmp_path, optimizer_def=ADAM)


@pytest.mark.parametrize("rate", [0.1, optax.constant_schedule(0.1)], ids=["number", "schedule"])
def test_a_trace_that_optax_keeps_negated_is_turned(rate: Any) -> None:
    optimizer = optim.LARS(0.1).create(PARAMS).apply_gradient(GRADS)
    state: Any = from_state_dict(fresh(optax.lars(rate)), serialization.to_state_dict(optimizer))
    (trace,) = [s.trace for s in state.opt_state if isinstance(s, optax.TraceState)]
    kernel: Any = trace["dense"]["kernel"]  # pyright: ignore
    momentum = optimizer.state.param_states["dense"]["kernel"].momentum
    np.testing.assert_array_equal(kernel, -momentum)


def test_boxes_and_frozen_dicts_of_today_take_the_leaves_of_before() -> None:
    boxed = {
        "dense": {"kernel": nn.Partitioned(jnp.zeros((2, 3)), ("a", "b")), "bias": jnp.ones(3)}
    }
    ordered = OrderedDict(dense=OrderedDict(PARAMS["dense"]))  # in no order of the alphabet
    state = from_bytes(fresh(params=ordered), serialization.to_bytes(trained()))
    assert jax.tree.structure(state.params) == jax.tree.structure(ordered)
    for params in (boxed, freeze(PARAMS)):
        state = from_bytes(fresh(params=params), serialization.to_bytes(trained()))
        assert jax.tree.structure(state.params) == jax.tree.structure(params)
        adam, *others = state.opt_state
        nu = jax.tree.map(lambda x: -1 - x if x.ndim == 2 else x, adam.nu)  # in the box
        negative = (adam._replace(nu=nu), *others)
        with refused(CheckpointError, "0 or more"):
            from_state_dict(state, serialization.to_state_dict(state.replace(opt_state=negative)))
        taken = TrainState.from_legacy(trained(), exact=False)
        same = [jax.tree.leaves(t) for t in (state.opt_state, taken.opt_state)]
        for one, other in zip(*same, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_every_copy_is_compared(odd: int) -> None:
    copies = np.zeros((3, 2))
    assert one_copy(copies) is not None
    copies[odd, 1] = 1
    assert one_copy(copies) is None


@pytest.mark.parametrize(("more", "said"), [(0, 2), (1, None)])
def test_a_step_is_said_where_every_state_has_taken_as_many(
    more: int, said: int | None, tmp_path: Path
) -> None:
    critic = trained()
    for _ in range(more):
        critic = critic.apply_gradient(critic.target)
    saved = {"actor": trained(), "critic": critic}
    (tmp_path / "old").write_bytes(serialization.to_bytes(saved))
    template = {"actor": fresh(), "critic": fresh()}
    assert convert_file(tmp_path / "old", tmp_path / "new", like=template).step == said

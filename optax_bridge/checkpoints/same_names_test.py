"""What does not fit a template is named, with the remedy that helps; what fits no array comes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization

import legacy_optim
from optax_bridge import CheckpointError, FullTrainState, TrainState, convert_state, from_legacy
from optax_bridge.checkpoints import (
    ConvertedWarning,
    LeftOverWarning,
    convert_file,
    from_state_dict,
    read_checkpoint,
)
from optax_bridge.checkpoints.definitions import parse_definition, parse_definitions, path_pattern
from optax_bridge.checkpoints.moves import Misfit, Plan, Side
from optax_bridge.checkpoints.read import written_as
from optax_bridge.checkpoints.restore_test import PARAMS, fresh, same_bits, trained
from optax_bridge.checkpoints.same_names import Paths, Scope, same_names
from optax_bridge.checkpoints.trees import fill_outline
from optax_bridge.correspondence.expression import ExpressionError
from optax_bridge.recorded_test import refused


def saved(tree: Any) -> Any:
    return serialization.to_state_dict(tree)


def taken(exact: bool) -> Any:
    return saved(TrainState.from_legacy(trained(), exact=exact))


def with_others(count: int) -> Any:
    return fresh(params={**PARAMS, **{f"more_{i}": jnp.ones(1) for i in range(count)}})


def halved(tree: Any, dtype: Any = jnp.bfloat16) -> Any:
    """Parameters and moments in half precision."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if np.ndim(x) else x, tree)


def with_step(step: Any) -> Any:
    old = saved(trained())
    return {**old, "state": {**old["state"], "step": step}}


EVERY = optax.MultiSteps(optax.adam(0.1), 2)
WIDE = {**PARAMS["dense"], "bias": np.ones(3)}
# Template, state dict, what the error says and what it does not.
MISFITS: dict[str, tuple[Callable[[], Any], Callable[[], Any], str, str]] = {
    "the other kind": (
        lambda: with_others(1), lambda: taken(exact=True),
        r"\['opt_state'\].*\['params'\].*another --recipe", "replicat",
    ),
    "lost": (
        fresh, lambda: {k: v for k, v in taken(exact=False).items() if k != "step"},
        r"no \['step'\].*saved from\. optax", "--recipe exact",
    ),
    "another shape": (
        lambda: fresh(params={"dense": {**PARAMS["dense"], "kernel": jnp.ones(6)}}),
        lambda: taken(exact=False),
        r"\['kernel'\]: float32\[2, 3\] for float32\[6\].*saved from", "a copy for each",
    ),
    "another optimizer, and NaN": (
        lambda: fresh(optax.sgd(0.1, momentum=0.9)),
        lambda: {**saved(trained()), "target": jax.tree.map(lambda x: x * jnp.nan, PARAMS)},
        r"trace.*NaN for finite.*grad_ema.*another", "had diverged",
    ),
    "another shape than before": (
        lambda: fresh(params={"dense": {**PARAMS["dense"], "bias": jnp.ones(4)}}),
        lambda: saved(trained()),
        r"\['target'\]\['dense'\]\['bias'\].*float32\[4\].*float32\[3\]", "a copy for each",
    ),
    "nine": (
        lambda: with_others(9), lambda: saved(trained()),
        r"no \['target'\]\['more_0'\].*\['more_7'\] and 1 more", "more_8",
    ),
    "two for one": (
        fresh, lambda: {"a": saved(trained()), "b": saved(trained())},
        r"expected a TrainState.*optax-bridge convert", "Traceback",
    ),
    "copies, and one that is missing": (
        lambda: fresh(params={"dense": {**PARAMS["dense"], "bias": jnp.ones((2, 3))}, "c": OLD}),
        lambda: taken(exact=False),
        r"no .*\['c'\].*float32\[3\] for .*saved from", "a copy for each",
    ),
    "a count below 0": (
        fresh,
        lambda: saved(
            optax.tree_utils.tree_set(TrainState.from_legacy(trained(), exact=False), count=-1)
        ),
        r"\['count'\]: expected the number of steps.*found -1", "no [",
    ),
    "steps below 0": (
        lambda: fresh(EVERY),
        lambda: saved(optax.tree_utils.tree_set(fresh(EVERY), gradient_step=-1)),
        r"\['gradient_step'\]: expected the number of steps.*found -1", "no [",
    ),
    "a step below 0": (
        fresh, lambda: {**taken(exact=False), "step": np.int32(-1)},
        r"\['step'\]: expected the number of steps.*found -1", "no [",
    ),
    "one parameter in float64": (
        fresh, lambda: {**saved(trained()), "target": {**PARAMS, "dense": WIDE}},
        r"\['bias'\]: expected float32, the template's type, found float64", "no [",
    ),
    "moments in the other half precision": (
        lambda: fresh(from_legacy(legacy_optim.Adam(0.1))),
        lambda: {"target": halved(PARAMS), "state": halved(saved(trained())["state"], jnp.float16)},
        r"float16 for float32, which the new state keeps", "no [",
    ),
    "no step for shapes": (
        lambda: jax.eval_shape(fresh), lambda: {"optimizer": with_step({}), "note": np.ones(1)},
        r"\['optimizer'\]\['state'\]\['step'\].*the number of steps", "int()",
    ),
    "one moment for two places": (
        lambda: fresh(optax.chain(optax.scale_by_adam(), optax.scale_by_adam())),
        lambda: saved(trained()), r"\['grad_ema'\]: several for one place in the new state", "no [",
    ),
    "a dtype that is kept": (
        fresh, lambda: {**saved(trained()), "state": halved(saved(trained())["state"])},
        r"float32, which the new state keeps.*bfloat16.*would lose bits", "saved from",
    ),
    "public Optax in half precision": (
        fresh, lambda: halved(saved(trained())),
        r"an exact transformation.*public Optax \(.*not the same in bfloat16", "saved from",
    ),
    "public Optax in half precision, by groups": (
        lambda: fresh(optax.partition({"a": optax.adam(0.1)}, "a")),
        lambda: halved(saved(trained())),
        r"an exact transformation.*public Optax \(.*not the same in bfloat16", "saved from",
    ),
    "public Optax in the other half precision": (
        fresh, lambda: halved(saved(trained()), jnp.float16),
        r"an exact transformation.*public Optax \(.*not the same in float16", "saved from",
    ),
}  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_said_with_the_remedy(misfit: str) -> None:
    template, state, message, wrong = MISFITS[misfit]
    with refused(CheckpointError, message) as error:
        from_state_dict(template(), state())
    assert wrong not in str(error.value)
    assert str(error.value).startswith("state dict")
    with refused(CheckpointError, r"^the run"):
        from_state_dict(template(), state(), "the run")


def test_what_is_missing_may_stay_and_what_has_another_shape_is_refused() -> None:
    larger = {"dense": {**PARAMS["dense"], "bias": jnp.ones(4)}, "more": jnp.ones(2)}
    with refused(CheckpointError, r"\['bias'\]: .*float32\[3\]"):
        from_state_dict(fresh(params=larger), saved(trained()), missing="keep")
    template = fresh(params={**larger, "dense": PARAMS["dense"]})
    kept = from_state_dict(template, saved(trained()), missing="keep")
    assert int(kept.step) == 2 and not kept.params["more"].any()
    with pytest.warns(LeftOverWarning, match=r"\['params'\]\['more_0'\] left over"):
        from_state_dict(fresh(), saved(with_others(1)), missing="keep")
    old = legacy_optim.Adam(0.1).create({**PARAMS, "more_0": OLD})
    with pytest.warns(LeftOverWarning, match=r"\['target'\]\['more_0'\] left over"):
        from_state_dict(fresh(), saved(old), missing="keep")


def test_what_is_no_array_beside_a_state_is_taken_as_it_is() -> None:
    template = {"state": fresh(), "name": "adam", "epoch": 3, "notes": None}
    beside = {"name": 3, "epoch": 4, "notes": {"a": "b"}}
    restored = from_state_dict(template, {"state": saved(trained()), **beside})
    assert {name: restored[name] for name in beside} == beside
    for other in (np.ones(2), "text", b"bytes", 2.5):
        restored = from_state_dict(template, {"state": saved(trained()), **beside, "name": other})
        assert restored["name"] is other
    best = from_state_dict({"best": np.float32(0)}, {"best": 0.1})["best"]  # Python's is rounded
    assert best == np.float32(0.1)


def test_an_array_beside_a_state_grows_from_nothing() -> None:
    """A history of losses, which the program begins with `np.zeros(0)`."""
    losses = np.arange(6.0).reshape(3, 2)
    old = {"state": saved(trained()), "losses": losses}
    template = {"state": fresh(), "losses": np.zeros((0, 2))}
    np.testing.assert_array_equal(from_state_dict(template, old)["losses"], losses)
    for other in (np.zeros(0), np.zeros((0, 3)), np.zeros((1, 2))):
        with refused(CheckpointError, r"\['losses'\]: .*such as np.zeros\(0\)"):
            from_state_dict({"state": fresh(), "losses": other}, old)


def test_statistics_along_other_axes_name_the_settings_that_say_which() -> None:
    by_axis = legacy_optim.Adafactor(0.1, min_dim_size_to_factor=2).create({"w": jnp.ones((4, 3))})
    with refused(CheckpointError, r"chose the axes to reduce \(min_dim_size_to_factor"):
        convert_state(saved(by_axis), legacy_optim.Adafactor(0.1))
    with refused(CheckpointError, "state of GradientDescent, found the state of Ada"):
        convert_state(saved(trained()), legacy_optim.GradientDescent(0.1))
    adam = saved(trained())
    adam["state"]["param_states"]["dense"]["bias"]["grad_ema"] = jnp.ones(4)
    with refused(CheckpointError, "belongs to another optimizer"):
        convert_state(adam, legacy_optim.Adam(0.1))


@pytest.mark.parametrize("groups", ["*more", "more", '("*", one)', "(code, Adam(0.1))"])
def test_a_group_that_is_code_is_refused_and_not_run(groups: str) -> None:
    with pytest.raises(ExpressionError, match=r"a pair of a pattern|takes pairs"):
        parse_definition(f"MultiOptimizer({groups})")


def test_several_definitions_are_named_by_their_places() -> None:
    found = parse_definitions(["actor = Adam(0.5)", "/a/critic/=Momentum(0.1, beta=0.5)"])
    assert {path: type(each).__name__ for path, each in found.items()} == {
        "actor": "Adam", "a/critic": "Momentum",
    }  # fmt: skip
    assert [*parse_definitions(["Adam(0.1, beta1=0.5)"])] == [""]
    with pytest.raises(ExpressionError, match="actor has one already"):
        parse_definitions(["actor=Adam(0.5)", "/actor=Adam(0.1)"])


def test_a_pattern_is_of_whole_paths() -> None:
    params = {"a": {"kernel": 1, "bias": 2}, "b": {"a": {"kernel": 3}}}
    for pattern, leaves in (("/a/*", [2, 1]), ("*/kernel", [1, 3]), ("kernel", []), ("/a", [])):
        assert [*path_pattern(pattern).iterate(params)] == leaves, pattern


@pytest.mark.parametrize("dtype", [bool, jnp.int8, jnp.float8_e5m2], ids=lambda d: d.__name__)
def test_parameters_of_other_types_are_refused(dtype: Any) -> None:
    tree = saved(trained())
    tree["target"] = {"dense": {**tree["target"]["dense"], "bias": jnp.ones(3, dtype)}}
    with refused(CheckpointError, "in floating point of 16 bits or more"):
        convert_state(tree, legacy_optim.Adam(0.1))


@pytest.mark.parametrize(
    "keys", [jnp.ones(2), 3, {"a": jnp.ones(2)}], ids=["floats", "int", "dict"]
)
def test_only_bits_are_taken_for_keys(keys: Any, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(serialization.to_bytes({"optimizer": trained(), "rng": keys}))
    with pytest.warns(LeftOverWarning, match=r"\['rng'\]"):
        state: Any = FullTrainState.from_legacy_checkpoint(
            tmp_path / "old", optimizer_def=legacy_optim.Adam(0.1)
        )
    assert state.rngs is None


def test_what_was_written_is_read_again_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old").write_bytes(serialization.to_bytes(trained()))
    msgpack = written_as("msgpack")

    def forgets_the_step(path: Path, tree: Any, *args: Any) -> None:
        assert msgpack.write is not None
        msgpack.write(path, tree.replace(step=np.int32(0)), *args)

    forgetful = dataclasses.replace(msgpack, write=forgets_the_step)
    monkeypatch.setattr("optax_bridge.checkpoints.write.written_as", lambda _: forgetful)
    given = {"optimizer_def": legacy_optim.Adam(0.1), "file_format": "msgpack"}
    with refused(CheckpointError, "the value written"):
        convert_file(tmp_path / "old", tmp_path / "new", **given)
    assert not (tmp_path / "new").exists()
    convert_file(tmp_path / "old", tmp_path / "new", **given, verify=False)
    assert read_checkpoint(tmp_path / "new").tree["step"] == 0


def test_flax_itself_names_the_remedy() -> None:
    data = serialization.to_bytes({"optimizer": trained()})
    with refused(CheckpointError, "optax-bridge convert"):
        serialization.from_bytes({"optimizer": fresh()}, data)


OLD, NEW = np.ones(2), np.zeros(2)
LONG = np.ones(3)
RBG = jax.random.key(3, impl="rbg")
BOX = "(is it in a box of its own class?)"
# Template, checkpoint, whether in a state; what comes of it, and what is noted.
FITTED: dict[str, tuple[Any, Any, bool, Any, dict[str, Any]]] = {
    "nothing for nothing": (None, None, True, None, {}),
    "array for nothing": (None, NEW, False, NEW, {}),
    "array for nothing in a state": (None, NEW, True, None, {"surplus": [("a",)]}),
    "level for nothing": (None, {"b": NEW}, False, {"b": NEW}, {}),
    "level for nothing in a state": (None, {"b": NEW}, True, None, {"surplus": [("a", "b")]}),
    "nothing for array": (OLD, None, False, OLD, {"missing": [("a",)]}),
    "level for array": (
        OLD, {"b": NEW}, False, OLD,
        {"wrong": [(("a",), f"float64[2] {BOX}", "a level with ['b']")]},
    ),
    "level for text": ("t", {"b": NEW}, False, {"b": NEW}, {}),
    "level for text in a state": (
        "t", {"b": NEW}, True, "t", {"wrong": [(("a",), f"'t' {BOX}", "a level with ['b']")]}
    ),
    "box for array": (OLD, {"value": NEW}, False, NEW, {}),
    "box for text in a state": ("t", {"value": "u"}, True, "u", {}),
    "array for box": ({"value": OLD}, NEW, True, {"value": NEW}, {}),
    "nothing for box": ({"value": OLD}, None, True, {"value": OLD}, {"missing": [("a", "value")]}),
    "array for text in a state": ("t", NEW, True, "t", {"wrong": [(("a",), "'t'", "float64[2]")]}),
    "bytes for text": ("t", b"u", True, b"u", {}),
    "text for number": (1, "u", True, 1, {"wrong": [(("a",), "1", "'u'")]}),
    "bits for a key": (RBG, np.asarray(jax.random.key_data(RBG)), False, RBG, {}),
    "numbers for a key": (
        RBG, np.zeros(4, int), True, RBG,
        {"wrong": [(("a",), "the bits of key<rbg>[], uint32[4]", "int64[4]")]},
    ),
    "other shape": (OLD, LONG, False, OLD, {"wrong": [(("a",), "float64[2]", "float64[3]")]}),
    "array for an empty one": (np.zeros(0), NEW, False, NEW, {}),
    "array for empty level": ({}, NEW, True, {}, {"surplus": [("a",)]}),
    "array for level": (
        {"b": OLD}, NEW, True, {"b": OLD}, {"wrong": [(("a",), "a level with ['b']", "float64[2]")]}
    ),
    "one too many": ({"b": OLD}, {"b": NEW, "c": NEW}, False, {"b": NEW}, {"unused": [("a", "c")]}),
    "one too many in a state": (
        {"b": OLD}, {"b": NEW, "c": NEW}, True, {"b": NEW}, {"surplus": [("a", "c")]}
    ),
    "nothing too many": ({"b": OLD}, {"b": NEW, "c": None, "d": {}}, True, {"b": NEW}, {}),
    "one lost": (
        {"b": OLD, "c": {"d": OLD, "e": None}}, {"b": NEW}, False,
        {"b": NEW, "c": {"d": OLD, "e": None}}, {"missing": [("a", "c", "d")]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FITTED)
def test_each_part_is_fitted_and_what_does_not_fit_is_noted(case: str) -> None:
    expected, given, in_state, made, noted = FITTED[case]
    scope = Scope("file", "state" if in_state else "program")
    plan = Plan("file", tuple(same_names(expected, given, Paths(("a",), ("a",)), scope)))
    assert repr(fill_outline(expected, plan.apply(), ("a",))) == repr(made)
    misfits = [item for item in plan.items if isinstance(item, Misfit)]
    problems = {side.name.lower(): plan.paths_on(side) for side in Side} | {
        "wrong": [(item.path, *item.texts) for item in misfits],
    }
    assert {name: value for name, value in problems.items() if value} == noted


@pytest.mark.parametrize("count", [2, 8, 9])
def test_of_leaves_that_do_not_fit_eight_are_named(count: int) -> None:
    expected, given = ({str(i): leaf for i in range(count)} for leaf in (OLD, LONG))
    plan = Plan("file", tuple(same_names(expected, given, Paths(), Scope("file"))))
    named = [f"['{i}']: float64[3] for float64[2]" for i in range(min(count, 8))]
    more = [f"{count - 8} more such"] if count > 8 else []
    with pytest.raises(CheckpointError) as error:
        plan.check()
    assert f"found {'; '.join([*named, *more])}. " in str(error.value)


BESIDE = {
    "a tuple for a dict": ({"b": OLD, "c": OLD}, {"0": {"b": OLD}, "1": OLD}, "['0'], ['1']"),
    "below": ({"b": {"c": OLD}}, {"b": {"d": {"e": OLD}, "f": OLD}}, "['b']['d'], ['b']['f']"),
    "a level that is missing": ({"b": {"c": OLD}}, {"d": OLD}, "['d']"),
    "on another level": ({"b": OLD, "c": {"d": OLD}}, {"c": {"d": OLD, "e": OLD}}, ""),
}


@pytest.mark.parametrize("case", BESIDE)
def test_beside_a_name_that_is_missing_stand_those_that_the_checkpoint_has(case: str) -> None:
    expected, given, names = BESIDE[case]
    plan = Plan("file", tuple(same_names(expected, given, Paths(), Scope("file", "program"))))
    with pytest.raises(CheckpointError) as error:
        plan.check()
    found = str(error.value).partition("found no ")[2].partition(". ")[0]
    assert found.partition(" but ")[2] == (f"{names} there" if names else "")


def test_a_setting_that_is_code_is_refused_by_name() -> None:
    with pytest.raises(ExpressionError, match="beta1=b is not a value: write a number"):
        parse_definition("Adam(0.1, beta1=b)")
    assert parse_definition("Adam(rate)").hyper_params.learning_rate is None


def test_a_template_without_its_state_says_so() -> None:
    with refused(CheckpointError, r"expected a TrainState: .*, found nothing\."):
        from_state_dict({"a": fresh()}, {"a": None})


MOMENTA = {"0": {"momentum": jnp.zeros(2)}, "1": {"momentum": jnp.ones(3)}}
GROUP: dict[str, Any] = {"step": 7, "param_states": MOMENTA}
# The groups that a list of states holds, and what the error says.
GROUPS: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"0": GROUP, "1": {}}, "expected an optimizer: "),
    "other steps": ({"0": GROUP, "1": {**GROUP, "step": 8}}, r"one step for all groups.*\[7, 8\]"),
    "a step that counts none": ({"0": {**GROUP, "step": np.asarray(2.0)}}, "the number of steps"),
    "two": ({"0": GROUP, "1": GROUP}, "as many groups as the transformation has, 1, found 2"),
    "other leaves": (
        {"0": {"step": 1, "param_states": {"0": MOMENTA["0"]}}},
        "group 0: expected states of 2 leaves, found 1",
    ),
    "more leaves": (
        {"0": {"step": 1, "param_states": {**MOMENTA, "2": MOMENTA["0"]}}},
        "group 0: expected states of 2 leaves, found 3",
    ),
}  # fmt: skip


def of_groups(state: Any) -> Any:
    return {"target": {"b": jnp.ones(3), "a": jnp.ones(2)}, "state": state}


def test_a_single_optimizer_of_long_ago_has_a_list_of_one_state() -> None:
    state: Any = convert_state(of_groups({"0": GROUP}), legacy_optim.Momentum(0.1))
    assert int(state.step) == 7
    np.testing.assert_array_equal(state.opt_state.trace["a"], [0.0, 0.0])
    np.testing.assert_array_equal(state.opt_state.trace["b"], [1.0, 1.0, 1.0])
    with refused(CheckpointError, "Say which"):
        convert_state(of_groups({"0": GROUP}))
    with refused(CheckpointError, r"LARS or Momentum. .*--optimizer 'Momentum\("):
        convert_state(saved(legacy_optim.Momentum(0.1).create(PARAMS)))
    two = 'MultiOptimizer(("/a", Momentum(0.1)), ("/b", Momentum(0.1)))'
    with refused(CheckpointError, "as many groups as the transformation has, 2, found"):
        convert_state(of_groups({"0": GROUP}), parse_definition(two))


@pytest.mark.parametrize("case", GROUPS)
def test_groups_of_long_ago_that_do_not_fit_are_refused(case: str) -> None:
    states, message = GROUPS[case]
    with refused(CheckpointError, message):
        convert_state(of_groups(states), legacy_optim.Momentum(0.1))


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_parameters_that_a_step_lifted_to_float32_are_taken_and_said(half: str) -> None:
    """As by a rate in float32 for each call; flax.optim restored them."""
    definition = legacy_optim.Momentum(0.1)
    params = {"a": jnp.ones(3, half), "b": jnp.ones(2, jnp.float32)}
    old = definition.create(params).apply_gradient(params, learning_rate=jnp.float32(0.5))
    template = TrainState.create(apply_fn=None, params=params, tx=from_legacy(definition))
    state = template
    for source in (old, "state"):
        with pytest.warns(ConvertedWarning, match=rf"\['a'\]: {half} to float32"):
            state = from_state_dict(template, saved(state if source == "state" else source))
            legacy = from_state_dict([definition.create(params)], saved([old]))
        same_bits(legacy, [old])
        grads = jax.tree.map(jnp.ones_like, old.target)
        new = state.apply_gradients(grads=grads)
        same_bits(new.params, old.apply_gradient(grads).target)
    other_half, tree = "float16" if half == "bfloat16" else "bfloat16", saved(state)
    for level in (tree["opt_state"]["trace"], tree["params"]):
        level["a"] = level["a"].astype(other_half)
        with refused(CheckpointError, rf"\['a'\].*{other_half}"):
            from_state_dict(template, tree)


def test_numbers_of_a_legacy_optimizer_that_are_cast_are_said_to_be() -> None:
    definition = legacy_optim.Momentum(0.1)
    template = definition.create({"a": jnp.ones(3, jnp.float16)})
    old = definition.create({"a": jnp.full(3, 0.5, jnp.bfloat16)})
    with pytest.warns(ConvertedWarning, match=r"bfloat16 to float16\. These take the template's"):
        restored = from_state_dict(template, saved(old))
    assert restored.target["a"].dtype == jnp.float16
    with refused(CheckpointError, r"float16\[3\] or numbers that it holds exactly, found bfloat16"):
        from_state_dict(template, saved(old.replace(target={"a": old.target["a"] * 1e30})))

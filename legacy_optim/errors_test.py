"""All that the old API says of what cannot be, whole: the place, what was expected, what to do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import serialization
from flax.core import FrozenDict

import legacy_optim as optim
from legacy_optim import new_names, removed_names, runner
from legacy_optim.older_layout_test import PARAMS as OLD_PARAMS
from legacy_optim.older_layout_test import grouped

T: Any = optim.t_identity
W = jnp.ones((2, 3))
PARAMS = {"a": {"w": W, "b": W}, "l": [W, W], "e": {}}
WRONG: dict[str, Any] = {
    "leaf missing": {**PARAMS, "a": {"w": W}},
    "leaf too many": {**PARAMS, "z": W},
    "list too short": {**PARAMS, "l": [W]},
    "list too long": {**PARAMS, "l": [W] * 3},
    "leaf for a dict": {**PARAMS, "a": 1.0},
    "FrozenDict": FrozenDict(PARAMS),
    "tuple for a list": {**PARAMS, "l": (W, W)},
    "None": None,
}
DEFINITIONS = {
    "Momentum": optim.Momentum(0.1),
    "MultiOptimizer": optim.MultiOptimizer((T.tree(), optim.Adam(0.1))),
    "WeightNorm": optim.WeightNorm(optim.Momentum(0.1)),
}
RATED = [n for n in optim.__all__ if n not in (*DEFINITIONS, "OptimizerDef") and n[0].isupper()]
RATED = [n for n in RATED if issubclass(getattr(optim, n), optim.OptimizerDef)] + ["Momentum"]
OPTIMIZER: Any = DEFINITIONS["Momentum"].create(PARAMS)
TWO = optim.MultiOptimizer((T["w"], optim.Momentum(0.1)), (T["b"], optim.GradientDescent(0.1)))
OF_TWO: Any = TWO.create({"w": W, "b": W})
OWN: Any = optim.OptimizerDef(None)
ANY: Any = optim  # calls that no type allows
MANY = {f"layer{i:02}": {"kernel": W, "bias": W} for i in range(20)}


def overlapping() -> Any:
    by_name = optim.ModelParamTraversal(lambda path, _: path[-2:] in ("/x", "/y"))
    by_type = optim.ModelParamTraversal(lambda path, value: value.dtype == jnp.int32)
    pairs = (by_name, optim.GradientDescent(1.0)), (by_type, optim.GradientDescent(1.0))
    return optim.MultiOptimizer(*pairs).create({"a": {"x": 0.0, "y": 0.0}, "b": {"y": 0, "z": 0}})


def without(definition: optim.OptimizerDef) -> Any:
    """A step with a state that lacks a part."""
    optimizer = definition.create(PARAMS)
    states = {key: value for key, value in optimizer.state.param_states.items() if key != "l"}
    state = optimizer.state.replace(param_states=states)
    return optimizer.replace(state=state).apply_gradient(PARAMS)


def restored(**groups: Any) -> Any:
    """States of groups as flax up to 0.3.2 wrote them, some of them changed, restored."""
    optimizer, old = grouped()
    old["state"] |= {number: old["state"][number] | group for number, group in groups.items()}
    return serialization.from_state_dict(optimizer, old)


def swapped() -> Any:
    optimizer, old = grouped()
    old["state"] = dict(zip("01", reversed(old["state"].values()), strict=True))
    return serialization.from_state_dict(optimizer, old)


def older_weight_norm(definition: optim.OptimizerDef) -> Any:
    optimizer = definition.create(OLD_PARAMS)
    saved: Any = serialization.to_state_dict(optimizer)
    state = saved["state"]["param_states"]["a"]["k"]
    state["mult"] = state.pop("scale")
    del state["direction"]
    return serialization.from_state_dict(optimizer, saved)


def chosen(traversal: Any) -> Any:
    return optim.Momentum(0.1).create({"a": {"w": W}, "l": [W]}, focus=traversal)


CASES: dict[str, Any] = {
    **{
        f"{name}, {case}": lambda d=definition, grads=grads: d.create(PARAMS).apply_gradient(grads)
        for name, definition in DEFINITIONS.items()
        for case, grads in WRONG.items()
        # A traversal finds its leaves in these as well; only their containers differ.
        if name == "Momentum" or case in ("leaf missing", "leaf too many", "None")
    },
    **{f"state of {name}": lambda d=d: without(d) for name, d in DEFINITIONS.items()},
    "many leaves": lambda: optim.Momentum(0.1).create(MANY).apply_gradient({}),
    **{name: lambda name=name: getattr(OPTIMIZER, name) for name in new_names.ATTRIBUTES},
    "no attribute": lambda: OPTIMIZER.other,
    **{
        name: lambda name=name: getattr(optim, name)
        for name in ("AdamW", "SGD", "TrainState", "RMSprop", "adagrad_", "Other")
    },
    "imported": lambda: exec("from legacy_optim import AdamW"),
    "text": lambda: ANY.Adam(learning_rate="1e-3"),
    "text for a step": lambda: (
        ANY.Adam(1e-3).create(jnp.ones(2)).apply_gradient(jnp.ones(2), learning_rate="1e-3")
    ),
    "text of a setting": lambda: ANY.Momentum(0.1, beta="0.9"),
    "schedule": lambda: ANY.Adam(lambda step: 0.1).create(W).apply_gradient(W),
    **{f"{n}()": lambda n=n: getattr(optim, n)().create(W).apply_gradient(W) for n in RATED},
    **{
        f"{n}(), lr": lambda n=n: getattr(optim, n)().create(W).apply_gradient(W, lr=1, eta=2)
        for n in RATED
    },
    "of no class": lambda: OWN.create(W),
    "of no step": lambda: OWN.apply_param_gradient(0, None, 0.0, None, 0.0),
    "not replicated": lambda: OPTIMIZER.unreplicate(),
    "no group": lambda: optim.MultiOptimizer(),
    "an override of one group": lambda: OF_TWO.apply_gradient(OF_TWO.target, beta=0.5),
    "too few": lambda: OF_TWO.apply_gradient(OF_TWO.target, hyper_params=TWO.hyper_params[:1]),
    "too many": lambda: OF_TWO.apply_gradient(OF_TWO.target, hyper_params=3 * TWO.hyper_params),
    "no list": lambda: OF_TWO.apply_gradient(OF_TWO.target, hyper_params=TWO.hyper_params[0]),
    "overlap": overlapping,
    "twice": lambda: chosen(T["l"].merge(T[0], T.tree())),
    "a dict": lambda: chosen(T["a"]),
    "a list": lambda: chosen(T["l"]),
    "no dict": lambda: list(optim.ModelParamTraversal(lambda *_: True).iterate([W])),
    "no dict, update": lambda: optim.ModelParamTraversal(lambda *_: True).update(abs, 3),
    "each of a number": lambda: T.each().update(abs, 3),
    "too few values": lambda: T.each().set([1], [1, 2]),
    "too many values": lambda: T.each().set([1, 2, 3, 4], [1, 2]),
    "a group without a leaf": lambda: restored(**{"0": {"param_states": {}}}),
    "a leaf in another group": lambda: restored(
        **{"0": {"param_states": {"0": 1, "1": 2}}, "1": {"param_states": {"0": 1}}}
    ),
    "other groups": swapped,
    "other steps": lambda: restored(**{"1": {"step": np.int32(2)}}),
    "the first WeightNorm": lambda: older_weight_norm(optim.WeightNorm(optim.Momentum(0.1))),
    "the first WeightNorm in a group": lambda: older_weight_norm(
        optim.MultiOptimizer((T["a"]["k"], optim.WeightNorm(optim.Momentum(0.1))))
    ),
    "xla_computation": lambda: removed_names.NAMES["jax"]["xla_computation"](abs, backend="cpu"),
    "DeviceArray": lambda: removed_names.NAMES["jax.interpreters.xla"]["_DeviceArray"](1),
    "id_tap": lambda: removed_names.NAMES["jax.experimental.host_callback"]["id_tap"](
        print, 1, tap_with_device=True
    ),
    **{
        f"run {name}": lambda name=name: runner._problem_of_program(name)
        for name in ("a/Notebook.ipynb", "missing.py", "-")
    },
}


def test_errors_are_those_recorded(recorded: Any) -> None:
    recorded("errors.txt", CASES)


def test_gradients_are_found_by_their_paths() -> None:
    optimizer: Any = DEFINITIONS["MultiOptimizer"].create(PARAMS)
    expected = optimizer.apply_gradient(PARAMS)
    for case in ("FrozenDict", "tuple for a list"):
        new = optimizer.apply_gradient(WRONG[case])
        assert jax.tree.structure(new) == jax.tree.structure(expected)
        assert jax.tree.all(jax.tree.map(jnp.array_equal, new, expected))


def test_parameters_left_alone_need_no_gradient() -> None:
    definition = optim.MultiOptimizer((T["a"]["w"], optim.GradientDescent(0.5)))
    new = definition.create(PARAMS).apply_gradient({"a": {"w": W, "b": None}})
    assert (new.target["a"]["w"] == 0.5).all()
    assert (new.target["a"]["b"] == 1).all()

"""WeightNorm wraps another optimizer; Optax has no equal."""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from typing import Any

import legacy_optim
from optax_bridge.correspondence.entry import (
    RATE,
    Case,
    Entry,
    HyperParam,
    LegacyClass,
    StateField,
    measured,
    rounding,
)
from optax_bridge.correspondence.parts import Row, tree
from optax_bridge.correspondence.recipe import call
from optax_bridge.correspondence.values import NOT_NEGATIVE
from optax_bridge.metadata.trees import OptState, Params


class _DirectionAndScale:
    """The optimizer within moves directions and scales, and has a state for each."""

    example = "WeightNorm(Adam(learning_rate=1e-3))"
    state_type = "WeightNormState"

    def definitions(self, definition: Any) -> Any:
        return [definition.wrapped_optimizer]

    def params(self, definition: Any, params: Params, own: Any) -> Any:
        del definition, params
        return [{"direction": own["direction"], "scale": own["scale"]}]

    def param_states(self, definition: Any, params: Params, param_states: Any) -> Any:
        del definition
        treedef = tree().structure(params)
        rows = treedef.flatten_up_to(param_states)
        direction = treedef.unflatten([row.direction_state for row in rows])
        return [{"direction": direction, "scale": treedef.unflatten([r.scale_state for r in rows])}]

    def joined(self, definition: Any, params: Params, own: Any, inner: Any) -> Any:
        import jax.numpy as jnp  # slow, and no recipe needs it

        treedef, (states,) = tree().structure(params), inner
        columns = [states["direction"], states["scale"], own["direction"], own["scale"]]
        make = type(definition.init_state({"w": jnp.zeros((2, 2))}).param_states["w"])
        rows = zip(*map(treedef.flatten_up_to, columns), strict=True)
        return treedef.unflatten([make(*row) for row in rows])

    def states(self, opt_state: OptState) -> Any:
        return [opt_state.inner]

    def with_states(self, opt_state: OptState, states: Any) -> Any:
        (inner,) = states
        return opt_state._replace(inner=inner)

    def recognised(self, kinds: Set[frozenset[str]], fields: frozenset[str]) -> bool:
        return kinds == {fields}

    def rows_within(self, rows: Sequence[Row]) -> list[list[Row]]:
        return [
            [
                (path, row.get("direction", param), row.get("direction_state"))
                for path, param, row in rows
                if row is not None
            ]
        ]

    def around(self, inner: Any) -> legacy_optim.WeightNorm:
        return legacy_optim.WeightNorm(inner)


_INNER_RATE = "its rate belongs to the optimizer inside it"

ENTRY = Entry(
    legacy=LegacyClass("WeightNorm"),
    port="optax_bridge.weight_norm",
    hyper_params=(
        HyperParam("wrapped_optimizer", "inner", getter=operator.attrgetter("wrapped_optimizer")),
        HyperParam("wn_decay", "wn_decay", 0),
        HyperParam("wn_eps", "wn_eps", 1e-8, within=NOT_NEGATIVE),
    ),
    state=(
        StateField("direction", exact="WeightNormState.direction"),
        StateField("scale", exact="WeightNormState.scale"),
    ),
    stock=(),
    cases=(
        Case({"wrapped_optimizer": call("legacy_optim.Momentum", learning_rate=RATE)}),
        Case(
            {
                "wrapped_optimizer": call(
                    "legacy_optim.Adam", learning_rate=RATE, weight_decay=0.01
                ),
                "wn_decay": 0.1,
            }
        ),
        Case(
            {
                "wrapped_optimizer": call("legacy_optim.GradientDescent", learning_rate=RATE),
                "wn_eps": 1e-3,
            }
        ),
    ),
    notes=(
        "Optax has no weight normalisation of parameters. The state holds directions and scales, "
        "and the new parameters come from them, not from the old ones: whatever else changes the "
        "parameters is undone by the next step, as it always was."
    ),
    sources=("flax.optim.weight_norm", "Salimans and Kingma 2016, arXiv:1602.07868"),
    around=rounding(
        64,
        "XLA compiles the step together with the normalisation, and rounds otherwise",
        bfloat16=measured(0),
        float16=measured(3.5),
    ),
    dropped={
        "direction_state": "belongs to the wrapped optimizer, whose entry maps it",
        "scale_state": "belongs to the wrapped optimizer, whose entry maps it",
    },
    parts=_DirectionAndScale(),
    excluded={
        "per-group": _INNER_RATE,
        "per-call": _INNER_RATE,
        "schedule": "the legacy side takes it per call",
    },
)

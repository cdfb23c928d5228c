"""What is said where a definition, an optimizer or its state is meant, and is not given."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import legacy_optim
import optax_bridge
from optax_bridge.checks import check_like
from optax_bridge.legacy import from_legacy, to_legacy, to_optax

PARAMS = {"w": jnp.ones(2), "b": jnp.ones(2)}
ADAM, MOMENTUM = legacy_optim.Adam(0.1), legacy_optim.Momentum(0.1)
OPTIMIZER = ADAM.create({"w": jnp.ones(1)})
STATE = optax_bridge.TrainState.from_legacy(OPTIMIZER)
BIASES = legacy_optim.ModelParamTraversal(lambda path, _: path == "/b")
KERNELS = legacy_optim.ModelParamTraversal(lambda path, _: path == "/w")
GIVEN: dict[str, Any] = {
    "name": "Adam",
    "call-as-text": "optim.adam(0.1)",
    "no-name": "x",
    "class": legacy_optim.LAMB,
    "optimizer": OPTIMIZER,
    "function": optax_bridge.adam,
    "state": STATE,
    "transformation": optax_bridge.adam(0.1),
    "replicated": legacy_optim.base.ReplicatedOptimizer(ADAM),
}


class Own(legacy_optim.OptimizerDef):
    """A definition of a program's own."""

    def init_param_state(self, param: Any) -> Any:
        return {"old": jnp.zeros_like(param)}


def narrow(definition: legacy_optim.OptimizerDef, exact: bool) -> Any:
    """A legacy optimizer whose state has another dtype than its parameters."""
    optimizer = definition.create(PARAMS)
    state = optimizer.state.replace(
        param_states=jax.tree.map(jnp.float16, optimizer.state.param_states)
    )
    return to_optax(optimizer.replace(state=state), exact)


def on_optax_in(dtype: Any, definition: legacy_optim.OptimizerDef = ADAM) -> Any:
    """A step of `from_legacy(exact=False)` on parameters of a dtype."""
    params = {"w": jnp.ones((2, 2), dtype), "b": jnp.ones(2)}
    tx = from_legacy(definition, exact=False)
    return tx.update(params, tx.init(params), params) and None


def after_init(params: Any) -> Any:
    """A step in half precision, after `init` of parameters in float32."""
    tx = from_legacy(ADAM, exact=False)
    tx.update(jnp.ones(2, jnp.bfloat16), tx.init(jnp.ones(2)), params)


OWN = Own(ADAM.hyper_params)
MADE = from_legacy(ADAM).init(PARAMS)
NO_STATE = from_legacy(legacy_optim.GradientDescent(0.1)).init(PARAMS)
CASES: dict[str, Any] = {
    **{name: lambda given=given: from_legacy(given) for name, given in GIVEN.items()},
    "to a state": lambda: optax_bridge.convert_state(STATE, 0.1),  # type: ignore[arg-type]
    "without a definition": lambda: optax_bridge.convert_state(STATE),
    "a transformation for a state": lambda: str(
        optax_bridge.convert_state(OPTIMIZER, optax_bridge.adam()).params
    ),
    "a class of transformations": lambda: optax_bridge.TrainState.create(
        None,
        PARAMS,
        optax.GradientTransformation,  # type: ignore[arg-type]
    ),
    "to wrap": lambda: optax_bridge.wrap_definition("momentum"),  # type: ignore[arg-type]
    "to take over, a definition": lambda: optax_bridge.TrainState.from_legacy(ADAM),  # type: ignore[arg-type]
    "to take over, a number": lambda: optax_bridge.TrainState.from_legacy(0.1),  # type: ignore[arg-type]
    "to take over, with tx": lambda: optax_bridge.TrainState.from_legacy(OPTIMIZER, tx=1),
    "exact": lambda: from_legacy(ADAM, "no"),  # type: ignore[arg-type]
    "no rate": lambda: from_legacy(legacy_optim.Adam(), exact=False),
    "no equal": lambda: from_legacy(legacy_optim.Adafactor(1, epsilon2=0.5), exact=False),
    "no such": lambda: from_legacy(legacy_optim.Adagrad(0.1), exact=False),
    "other": lambda: from_legacy(legacy_optim.LARS(0.1, weight_decay=0.1), exact=False),
    "other parameters": lambda: to_legacy(ADAM, {"w": jnp.ones(2)}, MADE, 0),
    "more parameters": lambda: to_legacy(ADAM, {**PARAMS, "c": jnp.ones(2)}, MADE, 0),
    "within another": lambda: to_legacy(legacy_optim.WeightNorm(ADAM), PARAMS, MADE, 0),
    "of a class of its own": lambda: to_legacy(OWN, PARAMS, MADE, 0),
    "without moments": lambda: to_legacy(MOMENTUM, PARAMS, NO_STATE, 0),
    "other leaves": lambda: check_like({"w": 1, "v": 2}, PARAMS, "grads", "Give all."),
    "two steps": lambda: to_legacy(ADAM, PARAMS, MADE, jnp.zeros(2, int)),
    "narrow": lambda: narrow(MOMENTUM, True),
    "narrow on Optax": lambda: narrow(ADAM, False),
    "half precision": lambda: on_optax_in(jnp.bfloat16),
    "half precision of gradients": lambda: after_init(None),
    "half precision of parameters": lambda: after_init(jnp.ones(2, jnp.float16)),
    "half precision, wrapped": lambda: on_optax_in(jnp.float16, legacy_optim.WeightNorm(MOMENTUM)),
    "half precision, grouped": lambda: on_optax_in(
        jnp.float16, legacy_optim.MultiOptimizer((KERNELS, ADAM), (BIASES, MOMENTUM))
    ),
    "half precision in other groups": lambda: on_optax_in(
        jnp.float16, legacy_optim.MultiOptimizer((KERNELS, MOMENTUM), (BIASES, ADAM))
    ),
    "half precision, taken": lambda: on_optax_in(jnp.bfloat16, MOMENTUM),
    "update of a definition": lambda: optax_bridge.wrap_definition(MOMENTUM).update(1, 2),
    "public name": lambda: getattr(optax_bridge, "adan"),  # noqa: B009
    "no public name": lambda: getattr(optax_bridge, "zzz"),  # noqa: B009
}


def test_what_is_meant_is_said(recorded: Any):
    recorded("checks.txt", CASES)

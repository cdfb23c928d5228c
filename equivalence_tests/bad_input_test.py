"""What a new user gets wrong: the traceback ends in a message of ours, and in one alone."""

# What is wrong by its types is what is tried.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import legacy_optim
import optax_bridge as ob
from equivalence_tests import check_equivalence
from optax_bridge import checkpoints, legacy
from optax_bridge.spmd.config import config_for_class, config_for_function

P: Any = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
G = jax.tree.map(jnp.ones_like, P)
ADAM = legacy_optim.Adam(0.1)


@functools.cache
def state() -> Any:
    return ob.TrainState.create(apply_fn=None, params=P, tx=ob.adam(0.1))


def create(params: Any = P, tx: Any = None) -> Any:
    return ob.TrainState.create(apply_fn=None, params=params, tx=tx or ob.adam(0.1))


def compare(**changed: Any) -> Any:
    return check_equivalence(optax.sgd(1.0), optax.sgd(1.0), P, **{"steps": 2, **changed})


def step(**given: Any) -> Any:
    return state().apply_gradients(**{"grads": G, **given})


tx = ob.adam(0.1)
CASES = {
    "a class as tx": (lambda: create(tx=ob.adam), "tx: expected an Optax transformation, found"),
    "text as tx": (lambda: create(tx="adam"), "tx: expected an Optax transformation, found str"),
    "text as a parameter": (lambda: create({"w": "x"}), r"params\['w'\]: expected an array or a"),
    "a tx of one's own": (
        lambda: ob.TrainState.from_legacy(ADAM.create(P), tx=tx),
        "from_legacy makes tx from the optimizer",
    ),
    "parameters as an optimizer": (
        lambda: ob.TrainState.from_legacy(P),
        "optimizer: expected an Optimizer",
    ),
    "text as a gradient": (lambda: step(grads={**G, "b": "x"}), r"grads\['b'\]: expected an array"),
    "text as a rate": (lambda: step(learning_rate="0.1"), r"\['learning_rate'\]: expected an arr"),
    "no gradients": (lambda: step(grads=None), "grads is not a tree like params"),
    "a shape": (lambda: step(grads={**G, "w": P["w"].T}), r"grads\['w'\]: expected shape \(3, 2\)"),
    "other parameters' state": (
        lambda: legacy.to_legacy(ADAM, P, optax.adam(1.0).init({"a": 1.0}), 0),
        r"opt_state is not that of Adam for these parameters: found no \['b'\]\['grad_ema'\]",
    ),
    "another optimizer's state": (
        lambda: state().to_legacy(legacy_optim.Momentum(0.1)),
        "opt_state is not that of Momentum",
    ),
    "no pair": (lambda: ob.multi_optimizer(tx), r"groups\[0\]: expected a pair .* found a transf"),
    "a dict of groups": (lambda: ob.multi_optimizer({"w": tx}), r"groups\[0\]: expected a pair"),
    "a definition in a group": (
        lambda: ob.multi_optimizer(("*", ADAM)),
        r"groups\[0\]\[1\] is Adam, a definition of the old API",
    ),
    "a predicate of one argument": (
        lambda: ob.path_mask(lambda path: True),  # pyright: ignore[reportArgumentType]
        "path_mask: expected a function of two arguments",
    ),
    "no predicate": (lambda: ob.path_mask(3), "path_mask: expected a glob or a function"),
    "no state": (lambda: tx.update(G, None), "state: expected AdamState, as init"),
    "gradients of a part": (
        lambda: tx.update({"w": 1.0}, tx.init(P), P),
        r"grads: expected a tree like the parameters, found no \['b'\]",
    ),
    "no mesh": (lambda: ob.state_shardings(state(), None), "mesh: expected a jax.sharding.Mesh"),
    "no path": (lambda: checkpoints.restore_checkpoint(None, state()), "ckpt_dir: expected a path"),
    "text as target": (
        lambda: checkpoints.restore_checkpoint("run", "state"),
        "target: expected what to restore into",
    ),
    "no checkpoint": (
        lambda: ob.TrainState.from_legacy_checkpoint(Path(__file__)),
        "expected a checkpoint of a known format",
    ),
    "a name elsewhere": (lambda: checkpoints.restored_into, "is optax_bridge.restored_into meant"),
    "a name misspelt": (lambda: ob.TrainSate, "is optax_bridge.TrainState meant"),
    "a config of no function": (lambda: config_for_function(3), "expected a function, found 3"),
    "a config of no class": (lambda: config_for_class(3), "expected a class, found 3"),
    "names": (lambda: compare(names="ab"), "names is 'ab'; expected two"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said_by_this_package_and_once(name: str):
    call, message = CASES[name]
    with pytest.raises((TypeError, ValueError, AttributeError), match=message) as raised:
        call()
    error = raised.value
    package = Path(__file__).parents[1]
    assert Path(raised.traceback[-1].path).is_relative_to(package), raised.traceback[-1]
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__

"""What a new user gets wrong: the traceback ends in a message of ours, and in one alone."""

# What is wrong by its types is what is tried.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import functools
import warnings
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


class BatchNormState(ob.TrainState):
    """A subclass with a field of its own."""

    batch_stats: Any


@functools.cache
def state() -> Any:
    return ob.TrainState.create(apply_fn=None, params=P, tx=ob.adam(0.1))


def create(params: Any = P, tx: Any = None, kind: Any = ob.TrainState, **fields: Any) -> Any:
    return kind.create(apply_fn=None, params=params, tx=tx or ob.adam(0.1), **fields)


def compare(**changed: Any) -> Any:
    return check_equivalence(optax.sgd(1.0), optax.sgd(1.0), P, **{"steps": 2, **changed})


def step(**given: Any) -> Any:
    return state().apply_gradients(**{"grads": G, **given})


def step_of(tx: Any, **given: Any) -> Any:
    normed = create(tx=tx, kind=BatchNormState, batch_stats={})
    return normed.apply_gradients(grads=G, **given)


def replicated() -> Any:
    with warnings.catch_warnings(action="ignore"):  # said once a process, maybe before
        return ADAM.create(P).replicate()


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
    "three in a group": (
        lambda: ob.multi_optimizer(("*", tx, 1)),
        r"groups\[0\]: expected a pair .* found tuple",
    ),
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
        "target: expected a state or a tree to restore into",
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
    "no rate anywhere": (lambda: step_of(ob.adam()), "no learning rate.*learning_rate="),
    "a misspelt argument": (lambda: step_of(ob.sgd(0.1), rat=0.5), "rat.*batch_stats"),
    "a legacy argument": (lambda: step_of(ob.adam(0.1), beta1=0.5), "beta1.*batch_stats"),
    "an argument of no Optax recipe": (
        lambda: step_of(optax.adam(0.1), learning_rate=0.5), "learning_rate.*batch_stats"
    ),
    "an argument of no chain": (
        lambda: step_of(optax.chain(optax.clip(1.0), optax.sgd(0.1)), value=1.0), "value.*batch_st"
    ),
    "an argument of none within": (
        lambda: step_of(ob.weight_norm(ob.sgd(0.1)), nesterov=True), "nesterov.*batch_stats"
    ),
    "a field misspelt": (lambda: create(batch_stat={}), r"batch_stat,.*FullTrainState"),
    "a field of another": (
        lambda: create(batch_stats={}), r"TrainState.*FullTrainState has batch_stats"
    ),
    "a field beside its own": (
        lambda: create(kind=BatchNormState, batch_stats={}, rngs={}),
        r"BatchNormState.*rngs.*FullTrainState",
    ),
    "a definition as tx": (lambda: create(tx=ADAM), "Adam.*from_legacy"),
    "an optimizer as tx": (
        lambda: create(tx=ADAM.create(P)), r"Optimizer of.*TrainState.from_legacy\(optimizer\)"
    ),
    "a class of the old API as tx": (
        lambda: create(tx=legacy_optim.Adam), "expected.*found the class Adam"
    ),
    "a number as tx": (lambda: create(tx=0.1), "float"),
    "params of a step": (lambda: step(params=1), "params"),
    "opt_state of a step": (lambda: step(opt_state=1), "opt_state"),
    "number of a step": (lambda: step(step=1), "step"),
    "gradients without a leaf": (lambda: step(grads={"w": G["w"]}), r"\['b'\]"),
    "copies for devices": (
        lambda: ob.TrainState.from_legacy(replicated()), r"unreplicate\(\)"
    ),
    "a state of other shapes": (
        lambda: ob.TrainState.from_legacy(
            ADAM.create(P).replace(target=P | {"b": jnp.zeros(7)})
        ),
        r"\['b'\].*\[7\].*\[2\]",
    ),
}  # fmt: skip


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

"""The steps that follow a recorded checkpoint, optimizer by optimizer, without the program's loop.

Runs on the genuine flax 0.5.3, where the optimizer itself takes them, and on today's packages,
where the state that `TrainState.from_legacy_checkpoint` makes takes them.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
import warnings

import numpy as np

STEPS = 3

# The step at which each program saved what is recorded; with it as the last, none goes further.
SAVED_AT = "3"

# For each program, for each optimizer in its checkpoint ('/'-joined path, '' for the whole): how
# the program's own names make one, and what its loop passes to `apply_gradient`.
OPTIMIZERS = {
    "bare_optimizer": {"": ("create_optimizer(init_params(), LEARNING_RATE)", {})},
    "checkpoint": {"": ("template", {})},
    "checkpoint_tuple": {"0": ("make(0.1)", {"learning_rate": 0.01})},
    "dictionary": {"optimizer": ("new_optimizer()", {})},
    "imagenet_state": {
        "optimizer": (
            "create_train_state(jax.random.PRNGKey(0), create_model()).optimizer",
            {"learning_rate": 0.1},
        )
    },
    "list_of_members": {str(i): (f"make_ensemble()[{i}]", {}) for i in range(3)},
    "mixed_precision": {"optimizer": ("create_train_state(0).optimizer", {})},
    "nested_states": {"learner/optimizer": ("make_experiment(0).learner.optimizer", {})},
    "own_optimizer": {"": ("create_optimizer()", {})},
    "parameter_groups": {"optimizer": ("create_state().optimizer", {})},
    "policy_and_critic": {
        "critic_optimizer": (
            "init_training_state().critic_optimizer",
            {"learning_rate": 0.02},
        ),
        "policy_optimizer": ("init_training_state().policy_optimizer", {}),
    },
    "replicated_optimizer": {"": ("create_optimizer()", {})},
    "state_dict": {"": ("fresh", {})},
    "state_with_methods": {"optimizer": ("create_state(0).optimizer", {})},
    "tuple_with_average": {"0": ("new_optimizer()", {})},
}


def after(path, folder, take):
    """For each optimizer in the checkpoint below `folder`, what `take` gives."""
    (file,) = (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names)
    name = os.path.splitext(os.path.basename(path))[0]
    before = sys.argv
    sys.argv = [path, folder, SAVED_AT]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            names = runpy.run_path(path, run_name="program")
    finally:
        sys.argv = before
    return {
        part: take(file, part, eval(expression, names), step_arguments)
        for part, (expression, step_arguments) in OPTIMIZERS[name].items()
    }


def of_the_optimizer(file, part, optimizer, step_arguments):
    """Restores by the optimizer's own method and steps by its own: the judge on flax 0.5.3."""
    import jax
    from flax import serialization

    with open(file, "rb") as opened:
        state = serialization.msgpack_restore(opened.read())
    for key in filter(None, part.split("/")):
        state = state[key]
    if np.ndim(state["state"]["step"]):  # saved once for each device
        state = jax.tree_util.tree_map(lambda leaf: leaf[0], state)
    optimizer = optimizer.restore_state(state)
    for step in range(STEPS):
        grads = _gradients(optimizer.target, step)
        optimizer = optimizer.apply_gradient(grads, **step_arguments)
    return {"params": _leaves(optimizer.target), "step": int(optimizer.state.step)}


def of_the_train_state(file, part, optimizer, step_arguments):
    """Takes the checkpoint over and steps as a TrainState does."""
    from optax_bridge import TrainState

    state = TrainState.from_legacy_checkpoint(
        file, optimizer_def=optimizer.optimizer_def, part=part or None
    )
    for step in range(STEPS):
        grads = _gradients(state.params, step)
        state = state.apply_gradients(grads=grads, **step_arguments)
    return {"params": _leaves(state.params), "step": int(state.step)}


def of_both(*args):
    """Side by side, on today's packages."""
    return {"optimizer": of_the_optimizer(*args), "train_state": of_the_train_state(*args)}


def _gradients(params, step):
    """Fixed gradients for any tree of arrays."""
    import jax

    def wave(index, leaf):
        at = np.arange(np.size(leaf), dtype=np.float32)
        return np.cos(at + step + index).reshape(np.shape(leaf)).astype(np.float32)

    leaves, treedef = jax.tree_util.tree_flatten(params)
    return jax.tree_util.tree_unflatten(treedef, [wave(i, x) for i, x in enumerate(leaves)])


def _leaves(params):
    """In JAX's order, which is the same for a list and for a dict of its indices below ten."""
    import jax

    return [np.asarray(leaf).tolist() for leaf in jax.tree_util.tree_leaves(params)]


def main():
    """Prints, for each program, both sides' steps on today's packages, or what went wrong."""
    import legacy_optim

    results = {}
    root, *programs = sys.argv[1:]
    for path in programs:
        stem = os.path.splitext(os.path.basename(path))[0]
        legacy_optim.install()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results[stem] = after(path, os.path.join(root, stem), of_both)
        except Exception:
            results[stem] = traceback.format_exc()
        finally:
            legacy_optim.uninstall()
    print(json.dumps(results))


if __name__ == "__main__":
    main()

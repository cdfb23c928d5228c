# pyright: strict
"""An optimizer's leaves that are read or saved without names, in their order, are left to a person.

Before:

    leaves = [arrays[str(index)] for index in range(len(arrays))]  # of a file
    optimizer = jax.tree_unflatten(jax.tree_structure(optimizer), leaves)

After:

    leaves = [arrays[str(index)] for index in range(len(arrays))]  # of a file
    # optax-bridge: leaves in their order: ...
    optimizer = jax.tree.unflatten(jax.tree.structure(optimizer), leaves)

An optimizer's leaves were its state's and then its target's; a `TrainState` has the step, the
parameters and then the state. With SGD and momentum both have as many, of the same shapes: an old
file would be read without an error, momenta for parameters. Leaves that are put together again as
they were flattened do no harm in a program that reads and writes no arrays.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import last_name
from migration_guide.codemod.rules.pickled import holds_optimizer
from migration_guide.codemod.writing.context import Context

_STRUCTURES = ("tree_structure", "structure")
_LEAVES = ("tree_flatten", "flatten", "tree_leaves", "leaves")
_FILES = ("numpy.load", "numpy.save", "pickle.", "joblib.", "h5py.")
ORDER = (
    "leaves in their order: those of an Optimizer were the state's, then the target's; a "
    "TrainState's are step, params, opt_state, so that a file of leaves without names is read "
    "wrongly, perhaps without an error. Read an old file into old = jax.tree.unflatten("
    "jax.tree.structure(template), leaves), the template made as before, with "
    "legacy_optim.NAME(...).create(params) for the optimizer; then "
    "optax_bridge.checkpoints.from_state_dict(state, flax.serialization.to_state_dict(old)). Save "
    "with names from now on, such as flax.serialization.to_bytes(state): nothing tells a file of "
    "one order from one of the other"
)


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    name = last_name(original.func)
    if name not in (*_STRUCTURES, *_LEAVES) or not original.args:
        return
    if not context.name(original.func).startswith("jax."):
        return
    matters = name in _STRUCTURES or context.once(_uses_files)
    if matters and holds_optimizer(context, original.args[0].value):
        context.by_hand(original, ORDER)


def _uses_files(context: Context) -> bool:
    """True if a module reads or writes arrays without names of Flax's."""
    calls = context.analysis.facts.calls
    return any(context.name(call.func).startswith(_FILES) for call in calls)

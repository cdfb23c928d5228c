# pyright: strict
"""`--recipe optax`: public Optax and Flax alone, where that is the same up to rounding.

Groups become `optax.partition`, where functions of path and leaf select them.

Before:

    kernels = optim.ModelParamTraversal(lambda path, _: "kernel" in path)
    definition = optim.MultiOptimizer((kernels, optim.Adam(0.1)))
    optimizer = optim.Adam(0.1).create(params, focus=kernels)

After:

    kernels = lambda path, _: "kernel" in path
    definition = optax.partition(
        {"0": optax.adam(...), "rest": optax.set_to_zero()}, group_labels(kernels)
    )
    optimizer = ...TrainState.create(..., tx=optax.partition(
        {"0": optax.adam(...), "rest": optax.set_to_zero()}, group_labels(kernels)
    ))

A traversal that is used for anything else stays one, and with it what it selects for.
"""

from collections.abc import Sequence

import libcst as cst

from migration_guide.codemod.writing.context import Context

TRAIN_STATE = "flax.training.train_state.TrainState"
HELPER = "with_hyper_params"
_SOURCE = '''
def {name}(state, **values):
    """The state with other hyper-parameters for its next step."""
    known = state.opt_state.hyperparams
    new = {{key: jax.numpy.asarray(value, known[key].dtype) for key, value in values.items()}}
    return state.replace(opt_state=state.opt_state._replace(hyperparams={{**known, **new}}))
'''


def with_hyper_params(
    context: Context, state: cst.BaseExpression, values: Sequence[cst.Arg]
) -> cst.BaseExpression:
    """A call of the helper, which the file gets."""
    name = context.function(HELPER, _SOURCE)
    context.needed.add("jax")
    args = [cst.Arg(state), *(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in values)]
    return cst.Call(cst.Name(name), args)


_LABELS = "group_labels"
SOURCE = '''
def {name}(*selectors):
    """Labels for optax.partition: the number of the selector that takes a leaf, else "rest"."""

    def label(path, leaf):
        name = "/" + "/".join(str(getattr(key, "key", key)) for key in path)
        groups = [str(i) for i, selects in enumerate(selectors) if selects(name, leaf)]
        if len(groups) > 1:
            raise ValueError(f"{{name}} is in groups {{', '.join(groups)}}")
        return groups[0] if groups else "rest"

    return lambda params: jax.tree_util.tree_map_with_path(label, params)
'''


def partition(
    context: Context,
    groups: Sequence[tuple[cst.BaseExpression, cst.BaseExpression]],
) -> cst.Call:
    """`optax.partition(...)` of groups: pairs of selector and transformation, rewritten already."""
    labels = context.function(_LABELS, SOURCE)
    context.needed.update({"jax", "optax"})
    moved = [(str(index), tx) for index, (_, tx) in enumerate(groups)]
    moved.append(("rest", cst.parse_expression("optax.set_to_zero()")))
    elements = [cst.DictElement(cst.SimpleString(f'"{name}"'), tx) for name, tx in moved]
    selectors = [cst.Arg(selector) for selector, _ in groups]
    args = [cst.Arg(cst.Dict(elements)), cst.Arg(cst.Call(cst.Name(labels), selectors))]
    return cst.Call(context.reference("optax.partition"), args)

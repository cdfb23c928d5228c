# pyright: strict
"""`--recipe standalone`: public Optax and Flax alone, where that is the same up to rounding."""

from collections.abc import Sequence

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import CLASS, HYPER_PARAMS
from migration_guide.codemod.reading import imports
from migration_guide.codemod.writing import partition, settings
from migration_guide.codemod.writing.context import Context, separated

TRAIN_STATE = "flax.training.train_state.TrainState"
HELPER = "with_hyper_params"
_SOURCE = '''
def {name}(state, **values):
    """The state with other hyper-parameters for its next step."""
    known = state.opt_state.hyperparams
    new = {{key: jax.numpy.asarray(value, known[key].dtype) for key, value in values.items()}}
    return state.replace(opt_state=state.opt_state._replace(hyperparams={{**known, **new}}))
'''


def stays(analysis: Analysis, call: cst.Call) -> str:
    """Why what a call makes stays on this package, or ""."""
    entry = analysis.names.entry(call.func)
    if entry is not None:
        if call in analysis.legacy:
            return "a definition of your own is made of it"
        if any(hp.variadic for hp in entry.hyper_params):
            return partition.why_not(analysis, call)
        names = analysis.overridden | analysis.project.overridden
        return settings.why_not_stock(entry, analysis.module, call, names)
    if analysis.makes_own_definition(call):
        return "a definition of your own is no part of public Optax"
    if partition.has_focus(analysis, call):
        return partition.why_not(analysis, call)
    if call in analysis.external or CLASS in analysis.kind(call.func):
        return "which optimizer this is shows when it runs"
    return ""


def leaves_some(analysis: Analysis) -> bool:
    """Whether some definition of a module stays on this package, or it uses that already."""
    if any(imports.mentions(node, "optax_bridge") for node in imports.statements(analysis.module)):
        return True
    return any(stays(analysis, call) for call in analysis.facts.calls)


def reads_hyper_params(analysis: Analysis) -> bool:
    """Whether a module reads hyper-parameters, which transformations of Optax do not keep."""
    return any(analysis.holds(node, HYPER_PARAMS) for node in analysis.facts.attributes)


def is_active(context: Context) -> bool:
    """Whether definitions and steps of a file are written for public Optax."""
    if not context.options.standalone:
        return False
    analysis = context.analysis
    project = analysis.project
    overridden = analysis.overridden | project.overridden
    if project.reads_hyper_params or reads_hyper_params(analysis) or "**" in overridden:
        return False
    return not (overridden and leaves_any(context))


def leaves_any(context: Context) -> bool:
    """Whether some definition of the program stays on this package."""
    return context.analysis.project.leaves_some or leaves_some(context.analysis)


def with_hyper_params(
    context: Context, state: cst.BaseExpression, values: Sequence[cst.Arg]
) -> cst.BaseExpression:
    """A call of the helper, which the file gets."""
    name = context.function(HELPER, _SOURCE)
    context.needed.add("jax")
    args = [cst.Arg(state), *(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in values)]
    return cst.Call(cst.Name(name), separated(args))

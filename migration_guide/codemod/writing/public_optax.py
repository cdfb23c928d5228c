# pyright: strict
"""Tells which definitions of a program public Optax has, and which stay on this package."""

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import CLASS, DEFINITION
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import OPTIM
from migration_guide.codemod.reading.tree import argument, walk
from migration_guide.codemod.writing import settings


def stays(analysis: Analysis, call: cst.Call) -> str:
    """Returns why the result of a call stays on this package, or ""."""
    entry = analysis.names.entry(call.func)
    if entry is not None:
        if call in analysis.legacy:
            return "a definition of your own builds on it"
        if entry.takes_groups:
            return why_no_partition(analysis, call)
        names = analysis.program.overridden_names
        return settings.why_not_optax(entry, analysis.module, call, names)
    if analysis.makes_own_definition(call):
        return "a definition of your own is not in public Optax"
    if has_focus(analysis, call):
        return why_no_partition(analysis, call)
    if call in analysis.external or CLASS in analysis.kind(call.func):
        return "the optimizer is known only at run time"
    return ""


def leaves_some(analysis: Analysis) -> bool:
    """True if some definition of a module stays on this package, or it uses that already."""
    if any(imports.mentions(node, "optax_bridge") for node in imports.statements(analysis.module)):
        return True
    return any(stays(analysis, call) for call in analysis.facts.calls)


def program_leaves_some(analysis: Analysis) -> bool:
    """True if some definition of the program stays on this package."""
    return analysis.project.leaves_some or leaves_some(analysis)


def is_possible(analysis: Analysis) -> bool:
    """True if definitions and steps of a file can be written for public Optax."""
    program = analysis.program
    if program.reads_hyper_params or "**" in program.overridden_names:
        return False
    return not (program.overridden_names and program_leaves_some(analysis))


def is_grouped(analysis: Analysis) -> bool:
    """True if some optimizer of a module has groups, or a focus."""
    return any(_selectors(analysis, call) is not None for call in analysis.facts.calls)


def has_focus(analysis: Analysis, call: cst.Call) -> bool:
    """True if a call creates an optimizer of some of the parameters."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "create":
        return False
    return len(call.args) > 1 and analysis.holds(func.value, DEFINITION)


def why_no_partition(analysis: Analysis, call: cst.Call) -> str:
    """Why a MultiOptimizer, or `create` with a focus, is no `optax.partition`, or ""."""
    if analysis.program.overridden_names:
        return "steps pass hyper-parameters, which the groups of optax.partition do not take"
    selectors = _selectors(analysis, call)
    if selectors is None:
        return "its groups are known only at run time"
    if not all(_traversal(analysis, selector) for selector in selectors):
        return "its groups are not all selected by functions of path and leaf"
    return ""


def becomes_function(analysis: Analysis, call: cst.Call) -> bool:
    """True if a traversal only selects groups of `optax.partition`, and becomes its function."""
    for candidate in analysis.facts.calls:
        for selector in _selectors(analysis, candidate) or ():
            if _traversal(analysis, selector) is call:
                return not why_no_partition(analysis, candidate)
    return False


def _selectors(analysis: Analysis, call: cst.Call) -> list[cst.BaseExpression] | None:
    """Returns the selectors of a MultiOptimizer's groups, or of the focus; None otherwise."""
    entry = analysis.names.entry(call.func)
    if entry is not None and entry.takes_groups:
        values = [arg.value for arg in call.args]
        pairs = [v for v in values if isinstance(v, cst.Tuple) and len(v.elements) == 2]
        starred = any(arg.star or arg.keyword for arg in call.args)
        if starred or len(pairs) < len(values) or not pairs:
            return None
        return [pair.elements[0].value for pair in pairs]
    focus = argument(call, 1, "focus") if has_focus(analysis, call) else None
    return [focus] if focus is not None else None


def _traversal(analysis: Analysis, selector: cst.BaseExpression) -> cst.Call | None:
    """The one call that makes a selector, if that is used for nothing else."""
    if isinstance(selector, cst.Call):
        is_one = analysis.names.of(selector.func) == f"{OPTIM}.ModelParamTraversal"
        plain = len(selector.args) == 1 and not selector.args[0].star
        return selector if is_one and plain else None
    if not isinstance(selector, cst.Name):
        return None
    values = analysis.assigned_to(selector)
    if len(values) != 1 or not isinstance(values[0], cst.Call):
        return None
    if not all(_selects(analysis, use) for use in _uses(analysis, selector)):
        return None
    return _traversal(analysis, values[0])


def _uses(analysis: Analysis, variable: cst.Name) -> list[cst.Name]:
    """Returns the uses of a variable, other than its assignments."""
    bound = analysis.names.assignments(variable)
    return [
        node
        for node in walk(analysis.module)
        if isinstance(node, cst.Name)
        and node.value == variable.value
        and not isinstance(analysis.parents.get(node), cst.AssignTarget)
        and analysis.names.assignments(node) == bound
    ]


def _selects(analysis: Analysis, use: cst.Name) -> bool:
    """True if a name stands where a group is selected."""
    above = analysis.parents.get(use)
    while isinstance(above, cst.Element | cst.Tuple | cst.Arg):
        above = analysis.parents.get(above)
    if not isinstance(above, cst.Call):
        return False
    return any(selector is use for selector in _selectors(analysis, above) or ())

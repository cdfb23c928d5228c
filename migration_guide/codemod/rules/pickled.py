"""An optimizer that is pickled is left to a person.

Before:

    pickle.dump(optimizer, file)
    optimizer = pickle.load(file)

After:

    # optax-bridge: a TrainState holds the functions of its transformation, ...
    pickle.dump(optimizer, file)
    # optax-bridge: what flax.optim pickled cannot be read without it: ...
    optimizer = pickle.load(file)

A legacy optimizer was numbers and a class, and could be pickled; a TrainState has a transformation:
functions, which public Optax makes on the spot. What is in an old pickle is known to flax.optim
alone.
"""

import libcst as cst

from migration_guide.codemod.inference.kinds import (
    DEFINITION,
    OPTIMIZER,
    STATE,
    Instance,
    Kind,
    within,
)
from migration_guide.codemod.reading.names import MARKS
from migration_guide.codemod.reading.tree import keyword_of, last_name
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import Context

_MODULES = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "numpy", "torch")
_WRITES = ("dump", "dumps", "save")
_READS = ("load", "loads")
_WRITTEN = (
    "a TrainState holds the functions of its transformation, and pickle refuses those of public "
    "Optax: write flax.serialization.to_bytes(state), and read it with "
    "optax_bridge.checkpoints.from_bytes(template, data)"
)
_READ = (
    "what flax.optim pickled cannot be read without it: in a script of two lines, started with "
    "`optax-bridge run`, load it and write flax.serialization.to_bytes(loaded) to a file; here "
    "read that with optax_bridge.checkpoints.from_bytes(template, data), the template like what "
    "was loaded, with a TrainState for each optimizer. Where an optimizer's target and state were "
    "pickled apart, put {'target': target, 'state': state} into what is written, in their place"
)
_ARRAYS = (
    "arrays that jax before 0.4.34 pickled are read under `optax-bridge run` alone; pickle "
    "numpy.asarray of them there"
)
_ENDS = tuple(f".{mark}" for mark in MARKS)


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """See the module."""
    name = last_name(original.func)
    if name not in (*_WRITES, *_READS) or not _pickles(context, original.func):
        return
    if name in _WRITES:
        if any(holds_optimizer(context, arg.value) for arg in original.args):
            context.by_hand(original, _WRITTEN)
    elif _gives(context, original):
        context.by_hand(original, _READ)
    elif context.analysis.uses_optim and "pickle" in context.name(original.func):
        context.note(original, _ARRAYS)


def _pickles(context: Context, func: cst.BaseExpression) -> bool:
    """True if a function is one of a module that pickles, or the method of what one made."""
    name = context.name(func)
    if name:
        return name.split(".")[0] in _MODULES
    holder = func.value if isinstance(func, cst.Attribute) else None
    if isinstance(holder, cst.Name):
        holder = constants.assigned_value(context.analysis, holder)
    return isinstance(holder, cst.Call) and context.name(holder.func).split(".")[0] in _MODULES


def _gives(context: Context, call: cst.Call) -> bool:
    """True if what is read is an optimizer, or is used like one."""
    if holds_optimizer(context, call):
        return True
    above: cst.CSTNode | None = context.parent(call)
    read = ""
    while isinstance(above, cst.Subscript | cst.Attribute):
        if isinstance(above, cst.Attribute):
            read = f"{read}.{above.attr.value}"
        if read.endswith(_ENDS):
            return True
        above = context.parent(above)
    if not isinstance(above, cst.Assign):
        return False
    return any(
        holds_optimizer(context, node)
        or bool(MARKS & context.analysis.read_of(node))
        or (isinstance(node, cst.Name) and _gives_on(context, node))
        for target in above.targets
        for node in _names(target.target)
    )


def _gives_on(context: Context, name: cst.Name) -> bool:
    """True if something of what a variable holds becomes an optimizer, or the state of one."""
    for call in context.analysis.facts.calls:
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "replace":
            states = [a.value for a in call.args if keyword_of(a) == "state"]
            if context.is_optimizer(func.value) and any(
                _is_part_of(context, part, name) for part in states
            ):
                return True
    for target, value in context.analysis.facts.assignments:
        pairs = [(target, value)]
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            elements = zip(target.elements, value.elements, strict=False)
            pairs = [(one.value, other.value) for one, other in elements]
        for into, part in pairs:
            if _is_part_of(context, part, name) and holds_optimizer(context, into):
                return True
    return False


def _is_part_of(context: Context, part: cst.BaseExpression, name: cst.Name) -> bool:
    """True if an expression is a variable, or a subscript of it."""
    while isinstance(part, cst.Subscript):
        part = part.value
    return (
        isinstance(part, cst.Name)
        and part.value == name.value
        and context.analysis.scopes.get(part) is context.analysis.scopes.get(name)
    )


def _names(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _names(element.value)]
    return [target]


def holds_optimizer(context: Context, node: cst.BaseExpression) -> bool:
    """True if an optimizer, its state or a definition is in a value, at any depth."""
    if any(holds_optimizer(context, part) for part in _parts(node)):
        return True
    kind = context.analysis.kind(node)
    if isinstance(node, cst.Name) and node.value == "self":
        around = next((a for a in context.ancestors(node) if isinstance(a, cst.ClassDef)), None)
        kind |= {Instance(around)} if around is not None else set()
    return _holds(context, kind, set())


def _parts(node: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The items of a literal; the object whose `__dict__` or `vars` a value is."""
    if isinstance(node, cst.Attribute) and node.attr.value == "__dict__":
        return [node.value]
    if isinstance(node, cst.Call) and last_name(node.func) == "vars":
        return [arg.value for arg in node.args]
    if isinstance(node, cst.Dict | cst.Tuple | cst.List | cst.Set):
        return [element.value for element in node.elements]
    return []


def _holds(context: Context, kind: Kind, seen: set[Instance]) -> bool:
    """True if an optimizer is within a kind; instances hold each other, and are looked at once."""
    for atom in within(kind):
        if atom in (OPTIMIZER, DEFINITION, STATE):
            return True
        if isinstance(atom, Instance) and atom not in seen:
            seen.add(atom)
            if any(
                owner is atom.node and _holds(context, context.analysis.kind(value), seen)
                for (owner, _), values in context.analysis.facts.set_on_self.items()
                for value in values
            ):
                return True
    return False

# pyright: strict
"""Leaves to a person what holds an optimizer, or looks like one, and cannot be rewritten for sure.

Before:

    optimizer = make_optimizer(config).create(params)
    rate = optimizer.target
    value = getattr(known_optimizer, name)
    step = known_optimizer.apply_gradient
    config.optimizer = "flax.optim.Adam"
    pickle.dump(known_optimizer, file)
    step = serialization.msgpack_restore(data)["state"]["step"]
    treedef = jax.tree_util.tree_structure(known_optimizer)

After:

    optimizer = make_optimizer(config).create(params)
    # optax-bridge: is this an optimizer of flax.optim? ...
    rate = optimizer.target
    # optax-bridge: attribute looked up by a string: ...
    value = getattr(known_optimizer, name)
    # optax-bridge: optimizer.apply_gradient taken as a value: write a lambda
    step = known_optimizer.apply_gradient
    # optax-bridge: this string names flax.optim.Adam, ...
    config.optimizer = "flax.optim.Adam"
    # optax-bridge: a TrainState holds the functions of its transformation, ...
    pickle.dump(known_optimizer, file)
    # optax-bridge: names of flax.optim's state dict: ...
    step = serialization.msgpack_restore(data)["state"]["step"]
    # optax-bridge: this depends on the order of leaves: ...
    treedef = jax.tree_util.tree_structure(known_optimizer)

A name alone proves little: there are target networks, optimizers of other libraries and `create`
methods of all kinds. So nothing is rewritten by its name alone, but everything named or used like
an optimizer gets a comment. The same goes for code that handles an optimizer's contents itself. A
`TrainState` holds functions, which pickle refuses; has other names in its state dict; and has its
leaves in another order, so that an old file of leaves without names may be read without an error,
momenta as parameters.
"""

import itertools
import re
from collections.abc import Callable, Iterator

import libcst as cst

from migration_guide.codemod.inference.kinds import (
    DEFINITION,
    FOREIGN,
    OPTIMIZER,
    STATE,
    Function,
    Instance,
    Kind,
    within,
)
from migration_guide.codemod.reading.names import MARKS, OPTIM, canonical, shared_name
from migration_guide.codemod.reading.tree import (
    argument,
    last_name,
    method_call,
    names_bound,
    text_of,
)
from migration_guide.codemod.rules.restoring import reads_nothing_old
from migration_guide.codemod.writing import constants, lookups
from migration_guide.codemod.writing.context import Context
from migration_guide.codemod.writing.remarks import QUESTION

_NAMED = re.compile(r"(^|_)opt(im(izers?)?)?(_def(inition)?)?(_|\d|$)", re.IGNORECASE)
_OF_OPTIM = re.compile(rf"{re.escape(OPTIM)}(\.[A-Za-z_]\w*)*")
_METHODS = (
    "apply_gradient", "compute_gradient", "compute_gradients", "optimize", "state_dict",
    "restore_state",
)  # fmt: skip
_MAKE_DICTS = (
    "load_state_dict", "msgpack_restore", "restore_checkpoint", "restore_dict", "state_dict",
    "to_state_dict",
)  # fmt: skip
_PICKLE = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "numpy", "torch")
_FILES = ("numpy.load", "numpy.save", "pickle.", "joblib.", "h5py.")
_BY_STRING = "attribute looked up by a string: a TrainState has params, step, opt_state"
_IN_TEXT = (
    "this string names {0}, which is gone: name {1} instead and wrap the result of the look-up, "
    "optax_bridge.from_legacy(...); or name its Optax equivalent (`optax-bridge recipe`)"
)
_BY_NAME = (
    "flax.optim is looked up by its name: it is gone, and no use through this look-up is "
    "rewritten; import it (from flax import optim), use that, and run this again"
)
_DANGLING = (
    "nothing imports `optim` here; if flax.optim is meant, import it (from flax import optim) and "
    "run this again, or write the Optax equivalent (`optax-bridge recipe`)"
)
UNCLEAR = (
    f"{QUESTION} The code does not say so for sure; if it is, annotate it as "
    "optax_bridge.TrainState and use .params, .step and .apply_gradients(grads=...)"
)
_UNCLEAR_METHOD = (
    f"{QUESTION} The code does not say so for sure; if it is, annotate it as "
    "optax_bridge.TrainState and run this again, which rewrites .{}"
)
_UNCLEAR_DEFINITION = (
    "is this a definition of flax.optim? The code does not say so; if it is, "
    "optax_bridge.TrainState.create(apply_fn=None, params=..., tx=...)"
)
_PICKLED = (
    "a TrainState holds the functions of its transformation, and pickle refuses those of public "
    "Optax: write flax.serialization.to_bytes(state), and read it with "
    "optax_bridge.checkpoints.from_bytes(template, data)"
)
_UNPICKLED = (
    "a pickle of flax.optim objects cannot be loaded without flax.optim: load it in a two-line "
    "script under `optax-bridge run`, and write flax.serialization.to_bytes(loaded) to a file; "
    "read that here with optax_bridge.checkpoints.from_bytes(template, data), into a template of "
    "the same structure, with a TrainState for each optimizer. If target and state of an optimizer "
    "were pickled separately, write {'target': target, 'state': state} in their place"
)
_ARRAYS = (
    "arrays pickled by jax before 0.4.34 can be read only under `optax-bridge run`; pickle "
    "numpy.asarray of them there"
)
ORDER = (
    "this depends on the order of leaves: an Optimizer has its state's, then its target's; a "
    "TrainState has step, params, opt_state, so a file of leaves without names is read wrongly, "
    "perhaps without an error. Read an old file with old = jax.tree.unflatten("
    "jax.tree.structure(template), leaves), into a template made as before, with "
    "legacy_optim.NAME(...).create(params) for the optimizer; then "
    "optax_bridge.checkpoints.from_state_dict(state, flax.serialization.to_state_dict(old)). Save "
    "with names from now on, such as flax.serialization.to_bytes(state): a file of leaves does not "
    "show its order"
)
_NAMES = (
    "names of flax.optim's state dict: that of a TrainState has params, opt_state and step, and "
    "step counts in opt_state; "
)
EITHER = (
    "optax_bridge.checkpoints.from_state_dict(state, saved) takes both, and "
    "flax.serialization.to_state_dict(state.to_legacy(definition)) makes the old one"
)
_CONVERTED = (
    "use those, which `optax-bridge inspect FILE` lists for a file that `optax-bridge convert` made"
)
_ARCHIVE = (
    "if this file holds an optimizer, its names change: params and opt_state for target and "
    "state. Read old and new files with optax_bridge.checkpoints.from_state_dict(template, "
    "flax.traverse_util.unflatten_dict(dict(numpy.load(file)), sep='/')), or with the separator "
    "that the program used"
)


def rewrite_attribute(context: Context, original: cst.Attribute, _: cst.Attribute) -> None:
    """`optimizer.target`, and methods that are not called."""
    holder, name = original.value, original.attr.value
    if context.analysis.names.dangling(original) and not context.analysis.names.dangling(holder):
        context.by_hand(original, _DANGLING)
        return
    call = context.call_of(original)
    if context.is_optimizer(holder):
        if name in _METHODS and call is None:
            context.by_hand(original, f"optimizer.{name} taken as a value: write a lambda")
        return
    if name == "create" and _is_made_elsewhere(context, holder):
        context.by_hand(original, _UNCLEAR_DEFINITION)
        return
    if not _is_unclear(context, holder):
        return
    of_state = name in ("step", "param_states") and last_name(holder) == "state"
    if name in ("target", "optimizer_def") or of_state:
        context.by_hand(original, UNCLEAR)
    elif name in _METHODS[1:] and call is not None:
        context.by_hand(original, _UNCLEAR_METHOD.format(name))
    elif name == "create" and call is not None and call.args and call.args[0].keyword is None:
        context.by_hand(original, _UNCLEAR_DEFINITION)


def rewrite_call(context: Context, original: cst.Call, _: cst.Call) -> None:
    """A call of a row of `_CALLS`; look-ups in the state dict that a call makes."""
    name = last_name(original.func)
    for names, applies, text in _CALLS:
        if name in names and applies(context, original):
            context.by_hand(original, text)
    if not context.uses_optim:
        return
    for names, applies, text in _NOTES:
        if name in names and applies(context, original):
            context.note(original, text)
    if name in _MAKE_DICTS and not _has_template(original):
        for lookup in _old_lookups(context, original):
            context.by_hand(lookup, _names(context))


def rewrite_string(context: Context, original: cst.SimpleString, _: cst.SimpleString) -> None:
    """`"flax.optim.Adam"`, which is looked up somewhere, in this file or another one."""
    name = text_of(original)
    above = context.parent(original)
    call = context.parent(above) if isinstance(above, cst.Arg) else None
    if not _OF_OPTIM.fullmatch(name) or isinstance(above, cst.Expr):
        return
    if not isinstance(call, cst.Call) or not _looks_up_optim(context, call):
        equal = f"legacy_optim{canonical(name).removeprefix(OPTIM)}"
        context.by_hand(original, _IN_TEXT.format(name, equal))


def _looks_up_optim(context: Context, call: cst.Call) -> bool:
    """`importlib.import_module("flax.optim")`, `__import__`, `getattr(flax, "optim")`."""
    texts = [constants.text(context.analysis, arg.value) or "" for arg in call.args]
    if last_name(call.func) in ("import_module", "__import__"):
        return f"{texts[0]}.".startswith(f"{OPTIM}.") if texts else False
    if last_name(call.func) != "getattr" or len(texts) < 2:
        return False
    return context.name(call.args[0].value) == "flax" and texts[1] == "optim"


def _looks_up_attribute(context: Context, call: cst.Call) -> bool:
    """`getattr(optimizer, name)`, `hasattr` and `setattr`."""
    is_builtin = isinstance(call.func, cst.Name) and bool(call.args)
    return is_builtin and context.is_optimizer(call.args[0].value)


def _pickles_one(context: Context, call: cst.Call) -> bool:
    return _is_of_pickle(context, call.func) and any(
        _holds_optimizer(context, arg.value) for arg in call.args
    )


def _unpickles_one(context: Context, call: cst.Call) -> bool:
    return _is_of_pickle(context, call.func) and _gives_optimizer(context, call)


def _unpickles_arrays(context: Context, call: cst.Call) -> bool:
    is_pickle = context.analysis.uses_optim and "pickle" in context.name(call.func)
    return is_pickle and not _unpickles_one(context, call)


def _orders_leaves(context: Context, call: cst.Call) -> bool:
    """True for an optimizer's structure, or its leaves in a program that has arrays in files."""
    if not context.name(call.func).startswith("jax.") or not call.args:
        return False
    matters = "structure" in last_name(call.func) or context.once(_uses_files)
    return matters and _holds_optimizer(context, call.args[0].value)


def _archives_one(context: Context, call: cst.Call) -> bool:
    return context.name(call.func).startswith("numpy.savez") and context.once(_holds_some)


Applies = Callable[[Context, cst.Call], bool]
# Last names of functions; whether a call is meant; what a person is told.
_CALLS: tuple[tuple[tuple[str, ...], Applies, str], ...] = (
    (("import_module", "__import__", "getattr"), _looks_up_optim, _BY_NAME),
    (("getattr", "hasattr", "setattr"), _looks_up_attribute, _BY_STRING),
    (("dump", "dumps", "save"), _pickles_one, _PICKLED),
    (("load", "loads"), _unpickles_one, _UNPICKLED),
    (
        ("tree_structure", "structure", "tree_flatten", "flatten", "tree_leaves", "leaves"),
        _orders_leaves,
        ORDER,
    ),
)
_NOTES: tuple[tuple[tuple[str, ...], Applies, str], ...] = (
    (("load", "loads"), _unpickles_arrays, _ARRAYS),
    (("savez", "savez_compressed"), _archives_one, _ARCHIVE),
)


def _is_unclear(context: Context, holder: cst.BaseExpression) -> bool:
    """True if something is named or used like an optimizer, and nothing is known of it."""
    named = holder
    if isinstance(holder, cst.Attribute) and holder.attr.value == "state":
        named = holder.value
    if not context.uses_optim:
        return False
    if _is_looked_up(named) and not context.analysis.kind(named):
        return True
    if not isinstance(named, cst.Name | cst.Attribute):
        return False
    kind = context.analysis.kind(named)
    if FOREIGN in kind and kind & {OPTIMIZER, DEFINITION}:
        return True
    if kind or context.name(named):
        return False
    is_self = isinstance(named, cst.Name) and named.value in ("self", "cls")
    if len(MARKS & context.analysis.read_of(named)) > 1 and not is_self:
        return True
    return bool(_NAMED.search(last_name(named))) and not context.analysis.from_unknown(named)


def _is_made_elsewhere(context: Context, node: cst.CSTNode) -> bool:
    """True for a part of another file's variable, made of definitions in an unknown way."""
    if context.analysis.kind(node):
        return False
    unclear = context.analysis.project.unclear
    while shared_name(context.name(node)) not in unclear:
        if not isinstance(node, cst.Attribute | cst.Call | cst.Subscript):
            return False
        node = node.func if isinstance(node, cst.Call) else node.value
    return True


def _is_looked_up(node: cst.BaseExpression) -> bool:
    """True if it is `getattr(agent, name)`."""
    return isinstance(node, cst.Call) and last_name(node.func) == "getattr" and len(node.args) > 1


def _is_of_pickle(context: Context, func: cst.BaseExpression) -> bool:
    """True if a function is one of a module that pickles, or a method of its objects."""
    name = context.name(func)
    holder = func.value if isinstance(func, cst.Attribute) and not name else None
    if isinstance(holder, cst.Name):
        holder = constants.assigned_value(context.analysis, holder)
    if isinstance(holder, cst.Call):
        name = context.name(holder.func)
    return name.split(".")[0] in _PICKLE


def _gives_optimizer(context: Context, call: cst.Call) -> bool:
    """True if a call reads an optimizer, or something that one is taken out of."""
    node: cst.BaseExpression = call
    above = context.parent(call)
    while isinstance(above, cst.Subscript | cst.Attribute):
        node, above = above, context.parent(above)
    code = context.code(node)
    if _holds_optimizer(context, node) or any(f".{mark}" in code for mark in MARKS):
        return True
    targets = [target.target for target in above.targets] if isinstance(above, cst.Assign) else []
    read = [name for target in targets for name in names_bound(target)]
    places = [*targets, *read, *(p for name in read for p in _destinations(context, name))]
    return any(
        _holds_optimizer(context, place) or bool(MARKS & context.analysis.read_of(place))
        for place in places
    )


def _destinations(context: Context, name: cst.Name) -> Iterator[cst.BaseExpression]:
    """Yields the targets of a variable or an item: `x` of `x = d["opt"]`, of `x.replace(...)`."""
    scope = context.analysis.scopes.get(name)

    def is_of(value: cst.BaseExpression) -> bool:
        while isinstance(value, cst.Subscript):
            value = value.value
        is_alike = isinstance(value, cst.Name) and value.value == name.value
        return is_alike and context.analysis.scopes.get(value) is scope

    for target, value in context.analysis.facts.assignments:
        pairs = [(target, value)]
        if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            elements = zip(target.elements, value.elements, strict=False)
            pairs = [(into.value, item.value) for into, item in elements]
        yield from (into for into, item in pairs if is_of(item))
    for call in context.analysis.facts.calls:
        holder, method = method_call(call)
        if holder is not None and method == "replace" and any(is_of(a.value) for a in call.args):
            yield holder


def _holds_optimizer(context: Context, node: cst.BaseExpression) -> bool:
    """True if an optimizer, its state or a definition is in a value, at any depth."""
    if isinstance(node, cst.Attribute) and node.attr.value == "__dict__":
        node = node.value
    if isinstance(node, cst.Dict | cst.Tuple | cst.List | cst.Set):
        return any(_holds_optimizer(context, element.value) for element in node.elements)
    if isinstance(node, cst.Call) and last_name(node.func) == "vars" and node.args:
        node = node.args[0].value
    kind = context.analysis.kind(node)
    if isinstance(node, cst.Name) and node.value == "self":
        around = next((a for a in context.ancestors(node) if isinstance(a, cst.ClassDef)), None)
        if around is not None:
            kind |= {Instance(around)}
    return _holds(context, kind, set())


def _holds(context: Context, kind: Kind, seen: set[Instance]) -> bool:
    """True if an optimizer is within a kind; instances hold each other, and are looked at once."""
    atoms = set(within(kind))
    if atoms & {OPTIMIZER, DEFINITION, STATE}:
        return True
    instances = {atom for atom in atoms if isinstance(atom, Instance)} - seen
    seen |= instances
    classes = {atom.node for atom in instances}
    return any(
        _holds(context, context.analysis.kind(value), seen)
        for (owner, _), values in context.analysis.facts.set_on_self.items()
        for value in values
        if owner in classes
    )


def _uses_files(context: Context) -> bool:
    """True if a module reads or writes arrays without names of Flax's."""
    return any(context.name(call.func).startswith(_FILES) for call in context.analysis.facts.calls)


def _holds_some(context: Context) -> bool:
    """True if some expression of the file is, or has in it, an optimizer or a part of one."""
    nodes = [*context.analysis.facts.calls, *context.analysis.facts.attributes]
    atoms = {atom for node in nodes for atom in within(context.analysis.kind(node))}
    return bool(atoms & {OPTIMIZER, STATE})


def _names(context: Context) -> str:
    """Returns the advice about names; Flax's own TrainState has no inverse."""
    return _NAMES + (_CONVERTED if context.once(reads_nothing_old) else EITHER)


def _has_template(call: cst.Call) -> bool:
    """True if a checkpoint is restored into something, whose names the result has."""
    template = argument(call, 1, "target") if last_name(call.func) == "restore_checkpoint" else None
    return template is not None and last_name(template) != "None"


def _old_lookups(context: Context, call: cst.Call) -> Iterator[cst.BaseExpression]:
    """Yields the look-ups of an optimizer's parts in the dict that a call makes."""
    for root, keys, lookup in context.once(_chains):
        pairs = set(itertools.pairwise(keys))
        if "param_states" in keys or "target" in keys or ("state", "step") in pairs:
            values = context.analysis.assigned_to(root) if isinstance(root, cst.Name) else [root]
            if any(_is_made_by(context, value, call) for value in values):
                yield lookup


def _chains(context: Context) -> list[lookups.Chain]:
    return lookups.chains(context.analysis)


def _is_made_by(context: Context, value: cst.BaseExpression, call: cst.Call) -> bool:
    """True if a value is a call's result, or that of a function that is given or returns it."""
    if value is call or not isinstance(value, cst.Call):
        return value is call
    functions = [a.node for a in context.analysis.kind(value.func) if isinstance(a, Function)]
    returned = (r for f in functions for r in context.analysis.facts.returns.get(f, ()))
    passed = (arg.value for arg in value.args)
    return any(_is_made_by(context, v, call) for v in passed) or call in returned

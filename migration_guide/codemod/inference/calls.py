"""The kinds of calls' results and of annotations: JAX's transformations, containers."""

import libcst as cst

from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.kinds import (
    ARRAY,
    CLASS,
    CREATE,
    DEFINITION,
    FOREIGN,
    HYPER_PARAMS,
    LEGACY,
    NOTHING,
    OPTIMIZER,
    OWN_GROUPS,
    REPLICATED,
    STATE,
    TRAVERSAL,
    Function,
    Instance,
    Items,
    Kind,
    Several,
    item,
    join_kinds,
    only,
)
from migration_guide.codemod.reading.names import OPTIM, shared_name
from migration_guide.codemod.reading.tree import argument, last_name, text_of

# Last part of the name of a function -> the argument that it returns in the same shape.
_SAME = {
    "replicate": 0,
    "device_get": 0,
    "device_put": 0,
    "deepcopy": 0,
    "copy": 0,
    "block_until_ready": 0,
    "freeze": 0,
    "unfreeze": 0,
    "stop_gradient": 0,
    "from_state_dict": 0,
    "from_bytes": 0,
    "device_put_replicated": 0,
    "pmean": 0,
    "restore_checkpoint": 1,
    "tree_map": 1,
    "tree_multimap": 1,
    "map": 1,
    "while_loop": 2,
    "fori_loop": 3,
    "eval_shape": None,
}
_WRAPPERS = {
    "jit",
    "pmap",
    "vmap",
    "xmap",
    "checkpoint",
    "remat",
    "named_call",
    "named_scope",
    "wraps",
}
# What an optimizer becomes: what a first run has left for a person is found by a second one as
# well.
TRAIN_STATE = "optax_bridge.TrainState"
_RETURN_OPTIMIZERS = {
    "apply_gradient",
    "apply_gradients",
    "replace",
    "restore_state",
}
_RESTORE = ("load_state", "restore", "restore_or_initialize")  # of clu's checkpoints
_MAKE_ARRAYS = ("jax.numpy.", "jax.random.", "numpy.")
_UNIONS = {"Optional", "Union", "Annotated", "ClassVar", "Final", "Type"}
_TUPLES = {"Tuple", "tuple"}


def call_kind(a: Expressions, node: cst.Call) -> Kind:
    """Returns the kind of a call's result."""
    if node in a.external:
        return only(DEFINITION)
    if node in a.legacy:
        if a.names.of(node.func) == f"{OPTIM}.ModelParamTraversal":
            return only(TRAVERSAL)
        return frozenset([DEFINITION, LEGACY])
    if a.makes_own_groups(node):
        return frozenset([DEFINITION, OWN_GROUPS])
    kind = _module_call(a, node) or _method_call(a, node)
    if kind is not None:
        return kind
    results = []
    called = a.kind(node.func)
    for atom in called:
        if isinstance(atom, Function):
            results.append(a.return_kind(atom.node))
        elif isinstance(atom, Instance):
            results.append(frozenset([atom]))
        elif atom == CLASS:
            results.append(only(DEFINITION))
        elif atom == CREATE:
            results.append(only(OPTIMIZER) | (called & {OWN_GROUPS}))
        elif atom == FOREIGN:
            results.append(only(FOREIGN))
    imported = a.names.of(node.func)
    if imported is not None:
        results.append(a.project.returns.get(shared_name(imported), NOTHING))
    kind = join_kinds(results)
    return kind - {LEGACY} if CLASS in called else kind  # which a bridge is around


def _module_call(a: Expressions, node: cst.Call) -> Kind | None:
    """Calls of flax.optim, of JAX, Flax and the standard library, by name."""
    imported = a.imported_name(node.func) or ""
    last = last_name(node.func)
    if imported == f"{OPTIM}.ModelParamTraversal":
        return only(TRAVERSAL)
    if imported in (f"{OPTIM}.Optimizer", f"{TRAIN_STATE}.create"):
        return only(OPTIMIZER)
    if imported == f"{OPTIM}.OptimizerState":
        return only(STATE)
    if imported in ("optax_bridge.from_legacy", "optax_bridge.wrap_definition"):
        return only(DEFINITION)
    if isinstance(node.func, cst.Name) and last in ("getattr", "vars") and node.args:
        if a.names.of(node.args[0].value) == OPTIM:
            return only(CLASS) if last == "getattr" else frozenset([Items(only(CLASS))])
        name = text_of(argument(node, 1))
        return a.field_kind(name) if name else None
    if a.project.follows_arrays and imported.startswith(_MAKE_ARRAYS):
        return only(ARRAY)
    method = isinstance(node.func, cst.Attribute) and not imported
    if method:
        return None
    if last in _WRAPPERS or last == "partial":
        wrapped = argument(node, 0, "fun" if last != "partial" else "")
        kind = a.kind(wrapped) if wrapped is not None else NOTHING
        return _bound(kind, len(node.args) - 1 if last == "partial" else 0, node)
    if last == "scan":
        carry = argument(node, 1, "init")
        return frozenset([Several((a.kind(carry) if carry is not None else NOTHING, NOTHING))])
    if last in ("cond", "switch"):
        branches = [a.kind(arg.value) for arg in node.args[1:3]]
        branches += [item(branch) for branch in branches]
        functions = {f for branch in branches for f in branch if isinstance(f, Function)}
        return join_kinds(a.return_kind(f.node) for f in functions)
    if last == "eval_shape":
        function = argument(node, 0)
        return _call_result(a, a.kind(function)) if function is not None else NOTHING
    if node.args and last in ("map", "filter") and a.is_plain_name(node.func):
        result = _call_result(a, a.kind(node.args[0].value))
        return frozenset([Items(result)]) if last == "map" else a.kind(node.args[-1].value)
    if last == "unreplicate" and node.args:
        return a.kind(node.args[0].value) - {REPLICATED}
    if last in _SAME:
        value = argument(node, _SAME[last], "tree" if last == "tree_map" else "target")
        return a.kind(value) if value is not None else NOTHING
    if last == "dict" and node.args and all(arg.keyword is not None for arg in node.args):
        inside = join_kinds(a.kind(arg.value) for arg in node.args)
        return frozenset([Items(inside)]) if inside else NOTHING
    if last in ("list", "tuple", "sorted", "reversed", "dict") and node.args:
        return a.kind(node.args[0].value)
    if last == "zip":
        return frozenset(
            [Items(frozenset([Several(tuple(item(a.kind(x.value)) for x in node.args))]))]
        )
    if last == "enumerate" and node.args:
        return frozenset([Items(frozenset([Several((NOTHING, item(a.kind(node.args[0].value))))]))])
    return None


def _method_call(a: Expressions, node: cst.Call) -> Kind | None:
    """Methods of optimizers, definitions and containers."""
    if not isinstance(node.func, cst.Attribute) or a.imported_name(node.func) is not None:
        return None
    base, method = a.kind(node.func.value), node.func.attr.value
    if DEFINITION in base and method == "create":
        if node.args and ARRAY in a.kind(node.args[0].value):
            a.note_array_target()
        return only(OPTIMIZER) | (base & {OWN_GROUPS})
    if DEFINITION in base and method == "update_hyper_params":
        return only(HYPER_PARAMS) | (only(LEGACY) if base & {LEGACY, OWN_GROUPS} else NOTHING)
    if method in _RESTORE and node.args:
        return a.kind(node.args[0].value)
    if base == only(ARRAY):
        return base
    if FOREIGN in base and OPTIMIZER not in base:
        return only(FOREIGN)
    if OPTIMIZER in base:
        same = base & {OPTIMIZER, OWN_GROUPS, REPLICATED}
        if method == "replicate":
            return same | {REPLICATED}
        if method == "unreplicate":
            return same - {REPLICATED}
        if method in _RETURN_OPTIMIZERS:
            return same
        if method == "optimize":
            return frozenset([Several((same, NOTHING))])
        if method in ("compute_gradient", "compute_gradients", "state_dict"):
            return NOTHING
    inside = item(base)
    if method in ("values", "get", "pop", "items", "copy") and inside:
        if method in ("get", "pop"):
            return inside
        pair = frozenset([Several((NOTHING, inside))])
        return frozenset([Items(inside if method != "items" else pair)])
    return base if method in ("replace", "_replace") and base else None


def _call_result(a: Expressions, kind: Kind) -> Kind:
    results = [a.return_kind(atom.node) for atom in kind if isinstance(atom, Function)]
    return join_kinds(
        [*results, only(OPTIMIZER) | (kind & {OWN_GROUPS}) if CREATE in kind else NOTHING]
    )


def _bound(kind: Kind, count: int, node: cst.Call) -> Kind:
    positional = sum(arg.keyword is None and not arg.star for arg in node.args) - 1
    shift = max(0, min(count, positional))
    return frozenset(
        Function(atom.node, atom.bound + shift) if isinstance(atom, Function) else atom
        for atom in kind
    )


def annotation_kind(a: Expressions, node: cst.BaseExpression) -> Kind:
    """Returns the kind that an annotation states."""
    if isinstance(node, cst.SimpleString):
        try:
            node = cst.parse_expression(str(node.evaluated_value))
        except cst.ParserSyntaxError:
            return NOTHING
    if isinstance(node, cst.Name | cst.Attribute):
        name = a.names.of(node) or ""
        if a.names.entry(node) is not None or name == f"{OPTIM}.OptimizerDef":
            return only(DEFINITION)
        if name == TRAIN_STATE:
            return only(OPTIMIZER)
        plain = {"Optimizer": OPTIMIZER, "OptimizerState": STATE, "ModelParamTraversal": TRAVERSAL}
        kind = plain.get(name.removeprefix(f"{OPTIM}.")) if name.startswith(f"{OPTIM}.") else None
        return only(kind) if kind else NOTHING
    if isinstance(node, cst.BinaryOperation):
        return join_kinds([annotation_kind(a, node.left), annotation_kind(a, node.right)])
    if isinstance(node, cst.Subscript):
        indices = [element.slice for element in node.slice]
        inner = [annotation_kind(a, i.value) for i in indices if isinstance(i, cst.Index)]
        last = last_name(node.value)
        if last in _UNIONS:
            return join_kinds(inner)
        if last in _TUPLES and any(inner):
            return frozenset([Several(tuple(inner))])
        if last != "Callable" and any(inner):
            return frozenset([Items(join_kinds(inner))])
    return NOTHING

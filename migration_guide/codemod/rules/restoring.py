"""Restores with this package's function, which reads old files as well as new ones.

Before:

    optimizer = checkpoints.restore_checkpoint(folder, optimizer)
    state = serialization.from_bytes(state, data)
    optimizer, epoch = serialization.from_state_dict((optimizer, 0), saved)

After:

    optimizer = optax_bridge.checkpoints.restore_checkpoint(folder, optimizer)
    state = optax_bridge.checkpoints.from_bytes(state, data)
    optimizer, epoch = optax_bridge.checkpoints.from_state_dict((optimizer, 0), saved)

A file that flax.optim wrote holds an optimizer where the program has a TrainState now. These
functions recognise one by its content and convert it to the template's layout; otherwise they do as
Flax's do. So they are written wherever the template may hold an optimizer, at any depth; only one
that surely holds none, parameters alone or no template at all, stays with Flax.
"""

import dataclasses
from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod.inference.kinds import OPTIMIZER, within
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.tree import argument, last_name, walk
from migration_guide.codemod.results import UNKNOWN_PATH, UNKNOWN_TEMPLATE, Restored
from migration_guide.codemod.writing import constants, definitions, public_optax
from migration_guide.codemod.writing.context import Context, Expression, New
from migration_guide.codemod.writing.lookups import without_taken
from optax_bridge._text import listing

# Flax's name -> where the template stands among the arguments, and where the file does.
FUNCTIONS = {
    "flax.training.checkpoints.restore_checkpoint": (1, 0),
    "flax.serialization.from_bytes": (0, 1),
    "flax.serialization.from_state_dict": (0, 1),
}
_HOME = "optax_bridge.checkpoints"
_REPLICATE = "flax.jax_utils.replicate"
CONVERTING = "files written before need converting"
FILL_IN = f"where {UNKNOWN_TEMPLATE} takes no arguments and returns the state to restore into"
_NO_TEMPLATE = (
    "without a template this returns the content of the file: params, step and opt_state for a "
    "TrainState, target and state if flax.optim wrote it"
)
_ON_IMPORT = (
    "this runs on import, and `check-resume` and `convert --like` import the program: "
    'put the training below `if __name__ == "__main__"` first'
)
_OWN_CALL = "the program's own call"
# What is read of optimizers and states, and is no optimizer.
_PARTS = ("target", "params", "model_state", "batch_stats", "step", "opt_state")


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """See the module."""
    name = context.name(original)
    call = context.call_of(original)
    if name not in FUNCTIONS or not is_rewritten(context, name, call):
        return None
    if call is not None:
        _see(context, name, call)
        if _runs_on_import(context, call):
            context.note(original, _ON_IMPORT)
    if reads_nothing_old(context):
        context.remark(original, needs_converting(context, call, name), CONVERTING)
        return None
    return context.reference(f"{_HOME}.{name.rpartition('.')[2]}")


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """Rewrites a restore without a template, or into a dict that holds more than the state."""
    name = context.name(original.func)
    if name == "flax.serialization.from_state_dict" and len(original.args) == 2:
        template, saved = original.args
        plain = template.keyword is None and saved.keyword is None
        if plain and context.is_optimizer(template.value):
            contents = without_taken(context.analysis, saved.value, updated.args[1])
            if contents is not updated.args[1]:
                return updated.with_changes(args=[updated.args[0], contents])
    if name == "flax.training.checkpoints.restore_checkpoint" and context.uses_optim:
        template = argument(original, 1, "target")
        starred = any(arg.star for arg in original.args)
        if not starred and (template is None or _is_none(template)):
            context.remark(original, _NO_TEMPLATE)
    return None


def reads_nothing_old(context: Context) -> bool:
    """True if a file keeps Flax's own functions, which read files of today alone."""
    return context.is_optax_alone and not context.program_leaves_some


def needs_converting(context: Context, call: cst.Call | None, name: str) -> str:
    """Returns the advice for old files that a call of a function, or of a method, reads."""
    restored = _restored_file(context, name, call)
    command = dataclasses.replace(restored, recipe="optax").command(
        f"{context.analysis.path.stem}.py"
    )
    advice = f"{CONVERTING}: {command}"
    if restored.is_to_be_filled_in:
        advice += f", {FILL_IN}"
    if any(context.name(c.func) == _REPLICATE for c in context.analysis.facts.calls):
        advice += "; it writes one copy: restore into one, then replicate that"
    return advice


def is_rewritten(context: Context, name: str, call: cst.Call | None) -> bool:
    """True if a function of Flax, called so or handed on, is replaced."""
    if name not in FUNCTIONS or not context.uses_optim:
        return False
    if call is None or any(arg.star for arg in call.args):
        return True
    template = argument(call, FUNCTIONS[name][0], "target")
    return template is not None and not _holds_none(context, template, set())


def _holds_none(context: Context, node: cst.BaseExpression, seen: set[cst.CSTNode]) -> bool:
    """True if the value of an expression surely holds no optimizer."""
    if OPTIMIZER in within(context.analysis.kind(node)):
        return False
    if _is_none(node) or isinstance(
        node, cst.SimpleString | cst.ConcatenatedString | cst.Integer | cst.Float
    ):
        return True
    if isinstance(node, cst.Attribute):
        return node.attr.value in _PARTS
    if isinstance(node, cst.Call):
        return isinstance(node.func, cst.Attribute) and last_name(node.func) == "init"
    if isinstance(node, cst.Subscript):
        return _holds_none(context, node.value, seen)
    if isinstance(node, cst.Dict):
        return all(
            isinstance(e, cst.DictElement) and _holds_none(context, e.value, seen)
            for e in node.elements
        )
    if isinstance(node, cst.Tuple | cst.List):
        return all(_holds_none(context, e.value, seen) for e in node.elements)
    if isinstance(node, cst.Name):
        origin = constants.assigned_value(context.analysis, node)
        if origin is None or origin in seen:
            return origin is not None
        seen.add(origin)
        return _holds_none(context, origin, seen)
    return False


def _is_none(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "None"


def _see(context: Context, name: str, call: cst.Call) -> None:
    """Notes the file that a call reads, where its path or its template is written out."""
    restored = _restored_file(context, name, call)
    if restored.path != UNKNOWN_PATH:
        context.checkpoints.setdefault(restored.path, restored)
    elif made := restored.template or restored.call:
        context.checkpoints.setdefault(f"{restored.path} {made}", restored)


def _runs_on_import(context: Context, node: cst.CSTNode) -> bool:
    """True if importing the module runs the code of a node."""
    return context.analysis.path.suffix == ".py" and not any(
        isinstance(above, cst.FunctionDef | cst.Lambda)
        or (isinstance(above, cst.If) and any(map(_is_name, walk(above.test))))
        for above in context.ancestors(node)
    )


def _is_name(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.Name) and node.value == "__name__"


def _restored_file(context: Context, name: str, call: cst.Call | None) -> Restored:
    """Returns the file that a call reads, with its contents as far as the program shows them."""
    file = argument(call, FUNCTIONS[name][1], "ckpt_dir") if call is not None else None
    path = None if file is None else _path(context, file)
    template = argument(call, FUNCTIONS[name][0], "target") if call is not None else None
    optimizers: dict[str, str] = {}
    # `optax.inject_hyperparams` and `optax.partition` have states of their own around those of
    # the optimizers, which only a template shows.
    has_own_states = context.rate_per_call or public_optax.is_grouped(context.analysis)
    function, own_call = ("", "") if template is None else _function(context, template)
    if not (context.options.optax_alone and has_own_states):
        if template is not None:
            optimizers = definitions.restored_optimizers(context.analysis, template)
        if not optimizers and not function:
            optimizers = context.once(_only_definition)
    return Restored(
        UNKNOWN_PATH if path is None else path,
        function,
        own_call,
        tuple(optimizers.items()),
        format=_format(name),
        prefix=_prefix(context, name, call),
    )


def _only_definition(context: Context) -> dict[str, str]:
    return definitions.only_definition(context.analysis)


def _function(context: Context, template: cst.BaseExpression) -> tuple[str, str]:
    """The function of the module that makes a template: its name, or what a new one returns."""
    made = _origin(context, template)
    parts = [made]
    if isinstance(made, cst.Tuple | cst.List | cst.Dict):
        parts = [_origin(context, element.value) for element in made.elements]
        elements = [e.with_changes(value=p) for e, p in zip(made.elements, parts, strict=True)]
        made = made.with_changes(elements=elements)
    calls = [node for node in walk(made) if _is_own_call(context, node)]
    if not calls:
        return "", ""
    if made is calls[0] and not calls[0].args:
        return calls[0].func.value, ""
    local = sorted({name for part in parts for name in _local_names(context, part)})
    is_same = not local and not any(map(context.legacy, walk(made)))
    own = _OWN_CALL + (f", with {listing(local)} written out" if local else "")
    return "", context.code(made) + ("" if is_same else f"  # {own}")


def _origin(context: Context, node: cst.BaseExpression) -> cst.BaseExpression:
    try:
        return definitions.origin(context.analysis, node)
    except definitions.Unknown:
        return node


def _is_own_call(context: Context, node: cst.CSTNode) -> bool:
    """True for a call of a function of the module."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name):
        return False
    bound = context.analysis.names.assignments(node.func)
    called = getattr(bound[0], "node", None) if len(bound) == 1 else None
    return isinstance(called, cst.FunctionDef) and context.parent(called) is context.analysis.module


def _local_names(context: Context, part: cst.BaseExpression) -> Iterator[str]:
    """Names in an expression whose values importing the module does not give."""
    scope = context.analysis.scopes[part]
    for name in {name.split(".")[0] for name in imports.references(part)}:
        bound = scope.find(name)
        known = all(a.scope.is_module and _runs_on_import(context, a.node) for a in bound)
        if not known or name in ("FLAGS", "args", "flags"):
            yield name


def _format(name: str) -> str:
    """Returns the format that a function reads: "msgpack", or "" if it may be Orbax's as well."""
    return "" if name.endswith("restore_checkpoint") else "msgpack"


def _prefix(context: Context, name: str, call: cst.Call | None) -> str:
    """The text before the step in the files' names; "PREFIX" if that is computed."""
    value = None
    if call is not None and name.endswith("restore_checkpoint"):
        value = argument(call, 3, "prefix")
    if value is None:
        return "checkpoint_"
    text = constants.text(context.analysis, value)
    return "PREFIX" if text is None else text


def _path(context: Context, node: cst.BaseExpression) -> str | None:
    """Returns the path of `"run"`, of `file.read()` and of variables with such a value."""
    if isinstance(node, cst.Name):
        try:
            origin = definitions.origin(context.analysis, node)
        except definitions.Unknown:
            return constants.text(context.analysis, node)
        return None if isinstance(origin, cst.Name) else _path(context, origin)
    if not isinstance(node, cst.Call):
        return constants.text(context.analysis, node)
    called, last = context.name(node.func), last_name(node.func)
    if called == "flax.serialization.msgpack_restore" and node.args:
        return _path(context, node.args[0].value)
    if last in ("read", "read_bytes") and isinstance(node.func, cst.Attribute):
        return _path(context, node.func.value)
    if (last == "open" or called.endswith("GFile")) and node.args:
        return constants.text(context.analysis, node.args[0].value)
    return constants.text(context.analysis, node)

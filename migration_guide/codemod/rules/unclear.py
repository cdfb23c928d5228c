# pyright: strict
"""Leaves to a person what looks like an optimizer where nothing shows if it is one.

Before:

    optimizer = make_optimizer(config).create(params)
    rate = optimizer.target
    value = getattr(known_optimizer, name)
    step = known_optimizer.apply_gradient
    config.optimizer = "flax.optim.Adam"

After:

    optimizer = make_optimizer(config).create(params)
    # optax-bridge: is this an optimizer of flax.optim? ...
    rate = optimizer.target
    # optax-bridge: an attribute looked up by a string: ...
    value = getattr(known_optimizer, name)
    # optax-bridge: optimizer.apply_gradient taken as a value: write a lambda
    step = known_optimizer.apply_gradient
    # optax-bridge: a text names flax.optim.Adam, ...
    config.optimizer = "flax.optim.Adam"

A name says little: there are target networks, optimizers of other libraries and `create` methods of
all kinds. So nothing is rewritten by name alone, but nothing that is named or used like an
optimizer is passed over in silence either. The same holds for attributes that are looked up by a
string, and for methods that are taken as a value.
"""

import re

import libcst as cst

from migration_guide.codemod.inference.kinds import DEFINITION, FOREIGN, OPTIMIZER
from migration_guide.codemod.reading.names import MARKS, OPTIM, canonical
from migration_guide.codemod.reading.tree import last_name, text_of
from migration_guide.codemod.writing import constants
from migration_guide.codemod.writing.context import QUESTION, Context

_NAMED = re.compile(r"(^|_)opt(im(izers?)?)?(_def(inition)?)?(_|\d|$)", re.IGNORECASE)
_OF_OPTIM = re.compile(rf"{re.escape(OPTIM)}(\.[A-Za-z_]\w*)*")
_METHODS = (
    "apply_gradient", "compute_gradient", "compute_gradients", "optimize", "state_dict",
    "restore_state",
)  # fmt: skip
_PARTS = {"target", "state", "step", "optimizer_def"}
_BY_STRING = "an attribute looked up by a string: a TrainState has params, step, opt_state"
_IN_TEXT = (
    "a text names {0}, which is gone: where the text is looked up, name {1} and wrap what it "
    "makes, optax_bridge.from_legacy(...); or name its equal in Optax (`optax-bridge recipe`)"
)
_BY_NAME = (
    "flax.optim looked up by its name: it is gone, and nothing that is used through this is "
    "rewritten; import it (from flax import optim), use that, and run this again"
)
_DANGLING = (
    "nothing imports `optim` here; if it is flax.optim's, import it (from flax import optim) and "
    "run this again, or write its equal (`optax-bridge recipe`)"
)
UNCLEAR = (
    f"{QUESTION} Nothing here says so for sure; if it is, annotate it as "
    "optax_bridge.TrainState and use .params, .step and .apply_gradients(grads=...)"
)
_UNCLEAR_METHOD = (
    f"{QUESTION} Nothing here says so for sure; if it is, annotate it as "
    "optax_bridge.TrainState and run this again, which rewrites .{}"
)
_UNCLEAR_DEFINITION = (
    "is this a definition of flax.optim? Nothing here says so; if it is, "
    "optax_bridge.TrainState.create(apply_fn=None, params=..., tx=...)"
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
    """`getattr(optimizer, name)`, `hasattr` and `setattr`; `operator.attrgetter("target")`."""
    if _looks_up_optim(context, original):
        context.by_hand(original, _BY_NAME)
    if context.name(original.func) == "operator.attrgetter":
        names = {text_of(arg.value).split(".")[-1] for arg in original.args}
        if context.analysis.uses_optim and names & _PARTS:
            context.by_hand(original, _BY_STRING)
        return
    if last_name(original.func) not in ("getattr", "hasattr", "setattr") or not original.args:
        return
    if isinstance(original.func, cst.Name) and context.is_optimizer(original.args[0].value):
        context.by_hand(original, _BY_STRING)


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
        return texts[:1] == [OPTIM] or any(t.startswith(f"{OPTIM}.") for t in texts[:1])
    if last_name(call.func) != "getattr" or len(texts) < 2:
        return False
    return context.name(call.args[0].value) == "flax" and texts[1] == "optim"


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
    if len(MARKS & context.analysis.read_of(named)) > 1 and not _is_self(named):
        return True
    return bool(_NAMED.search(last_name(named))) and not context.analysis.from_unknown(named)


def _is_looked_up(node: cst.BaseExpression) -> bool:
    """True if it is `getattr(agent, name)`, `vars(agent)[name]` or `agent.__dict__[name]`."""
    if isinstance(node, cst.Subscript):
        node = node.value
        called = node.func if isinstance(node, cst.Call) else node
        return last_name(called) in ("vars", "__dict__")
    return isinstance(node, cst.Call) and last_name(node.func) == "getattr" and len(node.args) > 1


def _is_self(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value in ("self", "cls")

"""`optim.Adam(...)` and its like become Optax, as the correspondence has it.

Before:

    definition = optim.Adam(1e-3, weight_decay=wd)
    definition = optim.Momentum(beta=0.9)  # the rate is given at each step

After:

    definition = optax.adamw(learning_rate=1e-3, weight_decay=wd, b1=0.9, b2=0.999, eps=1e-08)
    definition = optax_bridge.momentum()

What is written is the recipe that `optax-bridge check` proves: public Optax where that is identical
or differs in rounding alone in all dtypes that the program's parameters may have, else (and with
`--recipe exact`, and where steps override hyper-parameters) this project's transformation in legacy
arithmetic.
"""

import libcst as cst

from migration_guide.codemod import partition, settings, standalone
from migration_guide.codemod.context import Context, keyword, separated, with_keyword
from migration_guide.codemod.rules import schedule
from migration_guide.codemod.rules.bridge import bridged, is_bridged
from migration_guide.codemod.tree import comments
from optax_bridge.correspondence import Call, Described, Entry, choose_recipe
from optax_bridge.correspondence.choice import ANY_DTYPE
from optax_bridge.correspondence.claim import FULL_PRECISION
from optax_bridge.correspondence.recipe import Setting, Source, imports, render

_MIXED = (
    "stays on optax_bridge with the rest of the program, whose steps give hyper-parameters to "
    "definitions that have no equal in public Optax, or which reads hyper-parameters"
)
_SPREAD = (
    "what is in * and ** decides which Optax optimizer is its equal, so it stays on "
    "legacy_optim, and from_legacy turns it into that; to do without, write out the arguments"
)

_HALF = "{0}, not public Optax: parameters may be in half precision ({1}). {2}"
_DIFFERS = (
    "parameters may be in half precision ({}), where this is another optimizer. {}. Keep the "
    "parameters in float32, or write {}, which this package has"
)


def rewrite_call(
    context: Context, original: cst.Call, updated: cst.Call
) -> cst.BaseExpression | None:
    """See the module."""
    entry = context.analysis.names.entry(original.func)
    if entry is None:
        return None
    name = entry.legacy.__name__
    if original in context.analysis.legacy:
        return updated.with_changes(func=context.dotted(f"legacy_optim.{name}"))
    given = settings.given(entry, original.args, updated.args)
    if given is None and any(arg.star for arg in original.args):
        kept = updated.with_changes(func=context.dotted(f"legacy_optim.{name}"))
        return kept if is_bridged(context, original) else bridged(context, original, kept, _SPREAD)
    if given is None:
        context.by_hand(original, f"{name} takes other arguments: see `optax-bridge recipe {name}`")
        return None
    values = {name: settings.value(context.analysis.module, arg) for name, arg in given.items()}
    if context.options.standalone:
        why = standalone.stays(context.analysis, original)
        if why:
            context.remark(original, f"stays on optax_bridge: {why}")
        elif context.once(standalone.is_active):
            if any(hp.variadic for hp in entry.hyper_params):
                return partition.partition(context, [_pair(arg.value) for arg in updated.args])
            _say_where_it_differs(context, original, entry, entry.defaults() | values)
            return _standalone(context, entry, updated, values, given)
        else:
            context.remark(original, _MIXED)
    if any(hp.variadic for hp in entry.hyper_params):
        groups = [settings.value(context.analysis.module, arg) for arg in updated.args]
        recipe = Call(entry.port, tuple(groups))
        new = updated.with_changes(func=context.dotted(recipe.target))
    else:
        recipe, places = _recipe(context, original, entry, entry.defaults() | values)
        new = _in_place(context, updated, recipe, places, given)
    if new is None:
        new = _written(context, updated, recipe)
    context.needed.update(module.split(".")[0] for module in imports(recipe))
    context.keep_comments(original, new)
    return new


def rewrite_reference(
    context: Context, original: cst.BaseExpression, updated: cst.BaseExpression
) -> cst.BaseExpression | None:
    """A class in an annotation is a transformation."""
    del updated
    known = context.analysis.names.entry(original) is not None
    if known and context.in_annotation(original):
        return context.dotted("optax.GradientTransformation")
    return None


def _recipe(
    context: Context, original: cst.Call, entry: Entry, values: dict[str, object]
) -> tuple[Call, dict[str, str]]:
    """The recipe, and under which of its keywords each legacy setting stands."""
    wanted = "exact" if context.options.exact or context.rate_per_call else "stock"
    choice = choose_recipe(Described(entry, values), wanted, FULL_PRECISION)
    sign = context.half_precision
    if choice.kind == "stock" and sign is not None:
        wanted = "stock" if context.once(_keeps_half_precision) else "exact"
        choice = choose_recipe(Described(entry, values), wanted)
        if choice.kind == "exact":
            context.note(original, _HALF.format(choice.call.target, sign, choice.reason))
    context.recipes.add(choice.kind)
    if choice.kind == "exact":
        return choice.call, {hp.legacy: hp.port for hp in entry.hyper_params}
    return choice.call, _places(entry, values)


def _say_where_it_differs(
    context: Context, original: cst.Call, entry: Entry, values: dict[str, object]
) -> None:
    """Leaves it to a person where public Optax is another optimizer in half precision."""
    sign = context.half_precision
    if sign is not None:
        reason = choose_recipe(Described(entry, values), "standalone").reason
        if reason:
            context.by_hand(original, _DIFFERS.format(sign, reason, entry.port))


def _keeps_half_precision(context: Context) -> bool:
    """Whether public Optax may stand in half precision within all optimizers of the file."""
    entries = (context.analysis.names.entry(c.func) for c in context.analysis.facts.calls)
    return all(entry.around.dtypes >= ANY_DTYPE for entry in entries if entry is not None)


def _places(entry: Entry, values: dict[str, object]) -> dict[str, str]:
    """Legacy setting -> the keyword of the stock recipe under which it stands."""
    variant = next(variant for variant in entry.stock if variant.fits(values))
    slots = variant.recipe.kwargs.items()
    return {v.name: key for key, v in slots if isinstance(v, Setting)}


def _standalone(
    context: Context,
    entry: Entry,
    updated: cst.Call,
    values: dict[str, object],
    given: dict[str, cst.Arg],
) -> cst.BaseExpression:
    """Public Optax; what steps override, `optax.inject_hyperparams` makes part of the state."""
    planned = context.once(schedule.provable)
    if planned is not None:  # a schedule takes the place of the one rate that a step gives
        everything = entry.defaults() | values | {"learning_rate": Source(planned.function)}
        recipe = choose_recipe(Described(entry, everything), "standalone").call
        return _written(context, updated, recipe)
    overridden = context.analysis.overridden | context.analysis.project.overridden
    names = [hp.legacy for hp in entry.hyper_params if hp.legacy in overridden]
    if not names:
        everything = entry.defaults() | values
        recipe = choose_recipe(Described(entry, everything), "standalone").call
        context.recipes.add("stock")
        new = _in_place(context, updated, recipe, _places(entry, everything), given)
        return new or _written(context, updated, recipe)
    # `inject_hyperparams` calls the function at each step: by then a loop's variable has moved on.
    bound = {n: v for n, v in values.items() if isinstance(v, Source) and n not in names}
    symbols = {name: Source(name) for name in names}
    symbols |= {name: Source(name, source.value) for name, source in bound.items()}
    everything = entry.defaults() | values | symbols
    recipe = choose_recipe(Described(entry, everything), "standalone").call
    context.needed.add("jax")
    start = entry.defaults() | values
    # What each step must give is not a number until then, so that none is forgotten in silence.
    unset = Source('float("nan")')
    first = ", ".join(
        f"{name}={render(unset if start[name] is None else start[name])}" for name in names
    )
    parameters = [*names, *(f"{name}={source.text}" for name, source in bound.items())]
    static = f"static_args={tuple(bound)!r}, " if bound else ""
    injected = (
        f"optax.inject_hyperparams(lambda {', '.join(parameters)}: {render(recipe)}, "
        f"{static}hyperparam_dtype=jax.numpy.float32)({first})"
    )
    return _written(context, updated, recipe, injected)


def _written(
    context: Context, updated: cst.Call, recipe: Call, text: str = ""
) -> cst.BaseExpression:
    """A recipe, or text that has it, in the brackets of the call that it takes the place of."""
    new = context.source(text or render(recipe), imports(recipe))
    return new.with_changes(lpar=updated.lpar, rpar=updated.rpar)


def _pair(group: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    assert isinstance(group, cst.Tuple)
    selector, tx = group.elements
    return selector.value, tx.value


def _in_place(
    context: Context,
    updated: cst.Call,
    recipe: Call,
    places: dict[str, str],
    given: dict[str, cst.Arg],
) -> cst.Call | None:
    """The call with its own arguments renamed, layout and comments kept; None if it cannot be."""
    if recipe.args or any(isinstance(value, Call) for value in recipe.kwargs.values()):
        return None
    rest = dict(recipe.kwargs)
    args = []
    for name, arg in given.items():
        port = places.get(name)
        if port in rest:
            args.append(with_keyword(arg, port))
            del rest[port]
    added = [keyword(name, context.source(render(value))) for name, value in rest.items()]
    given_last = updated.args[-1] if updated.args else None
    everything = [*args, *added]
    if given_last is not None and everything:
        # What follows the last argument, a line break before the bracket say, follows the last one
        # still.
        if added and args and isinstance(args[-1].comma, cst.Comma):
            if comments(args[-1].comma):
                return None
            everything[len(args) - 1] = args[-1].with_changes(comma=_between(args))
        elif added and args:
            everything[len(args) - 1] = args[-1].with_changes(
                whitespace_after_arg=cst.SimpleWhitespace("")
            )
        everything[-1] = everything[-1].with_changes(
            comma=given_last.comma, whitespace_after_arg=given_last.whitespace_after_arg
        )
    return updated.with_changes(func=context.dotted(recipe.target), args=separated(everything))


def _between(args: list[cst.Arg]) -> cst.Comma:
    """The comma, with its line break, that this call has between its arguments."""
    for arg in args[:-1]:
        if isinstance(arg.comma, cst.Comma) and not comments(arg.comma):
            return arg.comma
    return cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))

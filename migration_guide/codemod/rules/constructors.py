"""`optim.Adam(...)` and its like become Optax, as the correspondence has it.

Before:

    definition = optim.Adam(1e-3, weight_decay=wd)
    definition = optim.Momentum(beta=0.9)  # the rate is given at each step

After:

    definition = optax.adamw(1e-3, weight_decay=wd)
    definition = optax_bridge.momentum(decay=0.9)

The recipe is the one that `optax-bridge check` tests: public Optax where that is identical or
differs by rounding alone in all dtypes that the program's parameters may have, else (and with
`--recipe exact`, where steps override hyper-parameters, and inside an optimizer that magnifies the
rounding of an inner one) this project's transformation in legacy arithmetic.
"""

import libcst as cst

from migration_guide.codemod.reading.tree import keyword
from migration_guide.codemod.results import UNKNOWN_RATE
from migration_guide.codemod.rules import schedule
from migration_guide.codemod.rules.bridge import add_bridge, is_bridged
from migration_guide.codemod.writing import definitions, optax_alone, public_optax, settings
from migration_guide.codemod.writing.context import Context, Expression, New
from migration_guide.codemod.writing.written_calls import exact_template, in_place, without_defaults
from optax_bridge.correspondence import Call, Described, Entry, choose_recipe
from optax_bridge.correspondence.claim import FULL_PRECISION
from optax_bridge.correspondence.recipe import Source, imports, render

_MIXED = (
    "stays on optax_bridge with the rest of the program, which reads hyper-parameters, or passes "
    "them per step to definitions without an equivalent in public Optax"
)
_SPREAD = (
    "the arguments in * and ** decide which Optax optimizer is equivalent, so it stays on "
    "legacy_optim, and from_legacy converts it; to do without, write out the arguments"
)

_EXACT = "{0}, not public Optax: {1}"
_PER_CALL = "steps give it hyper-parameters, or the program reads them"
_MAGNIFIED = "{0} magnifies the rounding of public Optax within it"
_HALF = "{0}, not public Optax: parameters may be in half precision ({1}). {2}"
_DIFFERS = (
    "parameters may be in half precision ({}), where this computes something else. {}. Keep the "
    "parameters in float32, or use {} of this package"
)


def rewrite_call(context: Context, original: cst.Call, updated: cst.Call) -> New:
    """See the module."""
    entry = context.analysis.names.entry(original.func)
    if entry is None:
        return None
    name = entry.legacy.__name__
    arguments = settings.legacy_arguments(entry, updated.args)
    if arguments is not None and entry.defaults().get("learning_rate", 0.0) is None:
        rate = arguments.get("learning_rate")
        context.rate_at_steps |= rate is None or context.code(rate.value) == "None"
    if original in context.analysis.legacy:
        context.legacy_names.add(name)
        return updated.with_changes(func=context.reference(f"legacy_optim.{name}"))
    if arguments is None and any(arg.star for arg in original.args):
        legacy_call = updated.with_changes(func=context.reference(f"legacy_optim.{name}"))
        return (
            legacy_call
            if is_bridged(context, original)
            else add_bridge(context, original, legacy_call, _SPREAD)
        )
    if arguments is None:
        context.by_hand(
            original, f"{name} does not take these arguments: see `optax-bridge recipe '{name}()'`"
        )
        return None
    values = {name: settings.value(context.analysis.module, arg) for name, arg in arguments.items()}
    if context.options.optax_alone:
        why = public_optax.stays(context.analysis, original)
        if why:
            context.remark(original, f"stays on optax_bridge: {why}")
        elif context.is_optax_alone:
            if entry.takes_groups:
                return optax_alone.partition(context, [_pair(arg.value) for arg in updated.args])
            _say_where_it_differs(context, original, entry, entry.defaults() | values)
            return _optax_alone(context, entry, updated, values, arguments)
        else:
            context.remark(original, _MIXED)
    if entry.takes_groups:
        new = updated.with_changes(func=context.reference(entry.port))
    else:
        template = _template(context, original, entry, entry.defaults() | values)
        new = _write_template(context, entry, updated, template, values, arguments)
    context.keep_comments(original, new)
    return new


def rewrite_reference(context: Context, original: Expression, _: Expression) -> New:
    """A class in an annotation is a transformation."""
    is_optimizer = context.analysis.names.entry(original) is not None
    if is_optimizer and context.in_annotation(original):
        return context.reference("optax.GradientTransformation")
    return None


def _template(
    context: Context, original: cst.Call, entry: Entry, values: dict[str, object]
) -> Call:
    """Returns the recipe of an optimizer, with a placeholder for each setting."""
    recipe = "exact" if context.options.exact or context.rate_per_call else "auto"
    choice = choose_recipe(Described(entry, values), recipe, FULL_PRECISION)
    sign, magnifier = context.half_precision, context.once(_magnifier)
    why = _PER_CALL if context.rate_per_call else choice.reason
    if choice.kind == "optax" and magnifier:
        choice = choose_recipe(Described(entry, values), "exact")
        why = _MAGNIFIED.format(magnifier)
    if choice.kind == "exact" and why and context.options.recipe == "auto":
        context.note(original, _EXACT.format(choice.call.target, why))
    if choice.kind == "optax":
        in_half = choose_recipe(Described(entry, values))
        if in_half.kind == "exact" and sign is None:
            context.for_float32 = True
        elif in_half.kind == "exact" and sign is not None:
            context.note(original, _HALF.format(in_half.call.target, sign, in_half.reason))
            choice = in_half
    context.recipes.add(choice.kind)
    return exact_template(entry) if choice.kind == "exact" else _optax_template(entry, values)


def _magnifier(context: Context) -> str:
    """Returns the name of an optimizer of the file that magnifies rounding, or ""."""
    entries = (entry for _, entry in context.analysis.constructions)
    return next((entry.legacy.__name__ for entry in entries if entry.magnifies_rounding), "")


def _say_where_it_differs(
    context: Context, original: cst.Call, entry: Entry, values: dict[str, object]
) -> None:
    """Leaves it to a person where public Optax is another optimizer in half precision."""
    sign = context.half_precision
    overridden = context.analysis.program.overridden_names
    values = values | {name: Source(name) for name in overridden & values.keys()}
    reason = choose_recipe(Described(entry, values), "optax").reason
    if reason and sign is None:
        context.for_float32 = True
    elif reason:
        context.by_hand(original, _DIFFERS.format(sign, reason, entry.port))


def _optax_template(entry: Entry, values: dict[str, object]) -> Call:
    return next(variant.recipe for variant in entry.optax if variant.fits(values))


def _write_template(
    context: Context,
    entry: Entry,
    updated: cst.Call,
    template: Call,
    values: dict[str, object],
    arguments: dict[str, cst.Arg],
) -> cst.BaseExpression:
    """A recipe with the call's settings in their own spelling, in its layout where that fits."""
    texts = entry.defaults() | values | _texts(context, arguments)
    recipe = without_defaults(entry, template, texts, arguments)
    _note_for_comparing(context, entry, template, values, arguments)
    new = in_place(context, updated, template, recipe, arguments)
    return new or _write_recipe(context, updated, recipe)


def _texts(context: Context, arguments: dict[str, cst.Arg]) -> dict[str, Source]:
    """Returns the arguments in the program's own spelling: `1e-4` stays `1e-4`."""
    return {name: Source(arg.star + context.code(arg.value)) for name, arg in arguments.items()}


def _note_for_comparing(
    context: Context,
    entry: Entry,
    template: Call,
    values: dict[str, object],
    arguments: dict[str, cst.Arg],
) -> None:
    """Notes the old and the new call with literals alone, for the command that compares them."""
    literals: dict[str, object] = (
        {"learning_rate": None} if "learning_rate" in entry.defaults() else {}
    )
    for name, value in (literals | values).items():
        text = (
            definitions.literal(context.analysis, arguments[name].value)
            if name in arguments
            else ""
        )
        if name == "learning_rate" and text in ("", "None"):
            text = UNKNOWN_RATE
        elif isinstance(value, Source | Call) and not text:
            return
        literals[name] = Source(text)
    arguments = {name: keyword(name, cst.Name(name)) for name in literals}
    new = without_defaults(entry, template, entry.defaults() | literals, arguments)
    context.compared[render(Call(entry.legacy.__name__, (), literals))] = render(new)


def _optax_alone(
    context: Context,
    entry: Entry,
    updated: cst.Call,
    values: dict[str, object],
    arguments: dict[str, cst.Arg],
) -> cst.BaseExpression:
    """Public Optax, with `optax.inject_hyperparams` around it for what steps override."""
    planned = context.once(schedule.provable)
    if planned is not None:  # a schedule takes the place of the one rate that a step gives
        everything = entry.defaults() | values | {"learning_rate": Source(planned.function)}
        template = _optax_template(entry, everything)
        rate = {"learning_rate": keyword("learning_rate", cst.Name(planned.function))}
        return _write_recipe(
            context, updated, without_defaults(entry, template, everything, rate | arguments)
        )
    overridden = context.analysis.program.overridden_names
    names = [hp.legacy for hp in entry.hyper_params if hp.legacy in overridden]
    if not names:
        context.recipes.add("optax")
        template = _optax_template(entry, entry.defaults() | values)
        return _write_template(context, entry, updated, template, values, arguments)
    # `inject_hyperparams` calls the function at each step: by then a loop's variable has moved on.
    bound = {n: v for n, v in values.items() if isinstance(v, Source) and n not in names}
    symbols = {name: Source(name) for name in names}
    symbols |= {name: Source(name, source.value) for name, source in bound.items()}
    everything = entry.defaults() | values | symbols
    named = {name: keyword(name, cst.Name(name)) for name in [*names, *arguments]}
    recipe = without_defaults(entry, _optax_template(entry, everything), everything, named)
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
    return _write_recipe(context, updated, recipe, injected)


def _write_recipe(
    context: Context, updated: cst.Call, recipe: Call, text: str = ""
) -> cst.BaseExpression:
    """A recipe, or text that has it, in the brackets of the call that it takes the place of."""
    new = context.source(text or render(recipe), imports(recipe))
    return new.with_changes(lpar=updated.lpar, rpar=updated.rpar)


def _pair(group: cst.BaseExpression) -> tuple[cst.BaseExpression, cst.BaseExpression]:
    assert isinstance(group, cst.Tuple)
    selector, tx = group.elements
    return selector.value, tx.value

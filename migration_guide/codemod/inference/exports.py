"""Collects the facts of a module for the other files of its program."""

import dataclasses
from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod.inference.expressions import Expressions
from migration_guide.codemod.inference.kinds import CLASS, HYPER_PARAMS, OPTIMIZER
from migration_guide.codemod.inference.project import Project, portable
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import OPTIM, is_legacy, shared_name
from migration_guide.codemod.reading.tree import keyword_of, method_call, walk

_MAPPING = ("jax.pmap", "flax.jax_utils.replicate")


def module_exports(a: Expressions) -> Project:
    """Returns the facts of a module: its fields, functions, classes, steps and imports."""
    facts = a.facts
    functions = {
        a.function_name(f): portable(a.return_kind(f))
        for f in facts.functions
        if isinstance(f, cst.FunctionDef)
    }
    fields = {name: portable(kind) for name, kind in a.fields.items()}
    values = a.variables()
    made = [*_top_aliases(a)]
    made += [(v, a.function_name(f)) for f in facts.functions for v in facts.returns[f]]
    unclear = {name for value, name in made if any(map(a.names.entry, walk(value)))}
    classes = [f"{a.key}.{c.name.value}" for c in a.legacy_classes]
    groups = [f"{a.key}.{c.name.value}" for c in a.legacy_classes if a.is_groups(c)]
    for origin, exported in _reexports(a):
        if origin in a.project.definitions:
            classes.append(exported)
        if origin in a.project.own_groups:
            groups.append(exported)
        if origin in a.project.returns:
            functions.setdefault(exported, a.project.returns[origin])
        if origin in a.project.values:
            values.setdefault(exported, a.project.values[origin])
    reads_hyper_params = any(
        a.holds(node, HYPER_PARAMS) for node in (*facts.attributes, *facts.calls)
    )
    return dataclasses.replace(
        a.shared,
        fields={name: kind for name, kind in fields.items() if kind},
        returns={name: kind for name, kind in functions.items() if kind},
        values=values,
        unclear=frozenset(
            name for name in unclear if not (values.get(name) or functions.get(name))
        ),
        own_apply_gradient=bool(a.own_classes),
        rate_per_call=reads_hyper_params or any(map(_overrides, _steps(a))),
        keywords=frozenset(keyword_of(arg) for c in facts.calls for arg in c.args) - {""},
        definitions=frozenset(classes),
        steps=len(a.applications),
        uses_optim=a.uses_optim,
        aliases=_aliases(a),
        calls_classes=_calls_classes(a),
        overridden_names=_overridden_names(a),
        reads_hyper_params=reads_hyper_params,
        jax_modules=frozenset([a.key] if a.imports_jax else []),
        own_groups=frozenset(groups),
        uses_pmap=any(a.names.of(node) in _MAPPING for node in _functions_used(a)),
    )


def _steps(a: Expressions) -> Iterator[cst.Call]:
    """Yields the calls that take a step, as far as their names say so."""
    for call in a.facts.calls:
        holder, method = method_call(call)
        is_optimize = method == "optimize" and holder is not None and a.holds(holder, OPTIMIZER)
        if method == "apply_gradient" or is_optimize:
            yield call


def _overridden_names(a: Expressions) -> frozenset[str]:
    """The hyper-parameters that some step gives; `**` where it cannot be told which."""
    overridden: set[str] = set()
    for call in _steps(a):
        holder, _ = method_call(call)
        if holder is not None and a.holds(holder, OPTIMIZER):
            overridden |= {keyword_of(arg) or "**" for arg in _overrides(call)}
    return frozenset(overridden)


def _overrides(call: cst.Call) -> list[cst.Arg]:
    """The arguments of a step except the gradient; `**kwargs` may hold some."""
    gradient = (0, "grads", "loss_fn")
    numbered = enumerate(call.args)
    return [arg for n, arg in numbered if arg.star or (keyword_of(arg) or n) not in gradient]


def _calls_classes(a: Expressions) -> bool:
    """True if some call makes a definition of a class that is chosen at run time."""
    return any(
        CLASS in a.kind(call.func)
        and a.names.entry(call.func) is None
        and not a.makes_own_definition(call)
        for call in a.facts.calls
    )


def _functions_used(a: Expressions) -> Iterator[cst.BaseExpression]:
    """Yields expressions that are called, passed on or decorate."""
    for call in a.facts.calls:
        yield call.func
        yield from (arg.value for arg in call.args)
    for function in a.facts.functions:
        if isinstance(function, cst.FunctionDef):
            yield from (decorator.decorator for decorator in function.decorators)


def _reexports(a: Expressions) -> Iterator[tuple[str, str]]:
    """Yields the names of other files' things that the module hands on: (origin, name here)."""
    project = a.project
    for node in a.facts.imports:
        if module := imports.star(node):
            home = f"{module.rpartition('.')[2]}."
            for origin in (*project.definitions, *project.returns, *project.values):
                if origin.startswith(home):
                    yield origin, f"{a.key}.{origin.removeprefix(home)}"
        elif isinstance(node, cst.ImportFrom):
            for name, bound, _ in imports.aliases(node):
                yield shared_name(name), f"{a.key}.{bound}"
    for value, exported in _top_aliases(a):  # `Groups = base.Groups`
        yield shared_name(a.names.of(value) or ""), exported


def _aliases(a: Expressions) -> dict[str, str]:
    """Returns the names of flax.optim that other files can import from this one."""
    origins = {}
    for node in a.facts.imports:
        for name, bound, is_dotted in imports.aliases(node):
            origin = a.names.resolve_export(name)
            if not is_dotted and is_legacy(origin):
                origins[f"{a.key}.{bound}"] = origin
    for value, exported in _top_aliases(a):
        if a.names.of(value) == f"{OPTIM}.OptimizerDef":
            origins[exported] = f"{OPTIM}.OptimizerDef"
    return origins


def _top_aliases(a: Expressions) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yields the values of the module's variables, with their names for other files."""
    top = a.scopes[a.module]
    for target, value in a.facts.assignments:
        if isinstance(target, cst.Name) and a.scopes.get(target) is top:
            yield value, f"{a.key}.{target.value}"

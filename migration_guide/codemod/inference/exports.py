"""Collects the facts of a module for the other files of its program."""

from collections.abc import Iterator

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import HYPER_PARAMS
from migration_guide.codemod.inference.project import Project, portable
from migration_guide.codemod.reading import imports
from migration_guide.codemod.reading.names import is_legacy
from migration_guide.codemod.reading.tree import dotted_name

_MAPPING = ("jax.pmap", "flax.jax_utils.replicate")


def module_exports(analysis: Analysis) -> Project:
    """Returns the facts of a module: its fields, functions, classes and imports."""
    facts = analysis.facts
    functions = {
        analysis.function_name(f): portable(analysis.return_kind(f))
        for f in facts.functions
        if isinstance(f, cst.FunctionDef)
    }
    fields = {name: portable(kind) for name, kind in analysis.fields.items()}
    classes = [f"{analysis.key}.{c.name.value}" for c in analysis.legacy_classes]
    groups = [
        f"{analysis.key}.{c.name.value}" for c in analysis.legacy_classes if analysis.is_groups(c)
    ]
    for origin, here in _reexports(analysis):
        if origin in analysis.project.definitions:
            classes.append(here)
        if origin in analysis.project.own_groups:
            groups.append(here)
        if origin in analysis.project.returns:
            functions.setdefault(here, analysis.project.returns[origin])
    return Project(
        fields={name: kind for name, kind in fields.items() if kind},
        returns={name: kind for name, kind in functions.items() if kind},
        own_apply_gradient=bool(analysis.own_classes),
        rate_per_call=analysis.rate_per_call,
        keywords=frozenset(a.keyword.value for c in facts.calls for a in c.args if a.keyword),
        definitions=frozenset(classes),
        steps=len(analysis.applications),
        argument_kinds=analysis.argument_kinds,
        uses_optim=analysis.uses_optim,
        expected=analysis.expected,
        aliases=_aliases(analysis),
        calls_classes=analysis.calls_classes,
        overridden_names=analysis.overridden_names,
        reads_hyper_params=any(analysis.holds(a, HYPER_PARAMS) for a in facts.attributes),
        jax_modules=frozenset([analysis.key] if analysis.imports_jax else []),
        legacy_arguments=analysis.legacy_arguments,
        legacy_results=frozenset(analysis.legacy_results),
        legacy_fields=frozenset(analysis.legacy_fields),
        own_groups=frozenset(groups),
        uses_pmap=any(analysis.names.of(node) in _MAPPING for node in _functions_used(analysis)),
    )


def _functions_used(analysis: Analysis) -> Iterator[cst.BaseExpression]:
    """Yields expressions that are called, passed on or decorate."""
    for call in analysis.facts.calls:
        yield call.func
        yield from (arg.value for arg in call.args)
    for function in analysis.facts.functions:
        if isinstance(function, cst.FunctionDef):
            yield from (decorator.decorator for decorator in function.decorators)


def _reexports(analysis: Analysis) -> Iterator[tuple[str, str]]:
    """Yields what is there of other files of the program: the name there, and the name here."""
    project = analysis.project
    for node in analysis.facts.imports:
        if not isinstance(node, cst.ImportFrom):
            continue
        home = (dotted_name(node.module) or "").split(".")[-1] if node.module is not None else ""
        if isinstance(node.names, cst.ImportStar):
            for origin in (*project.definitions, *project.returns):
                if origin.startswith(f"{home}."):
                    yield origin, f"{analysis.key}.{origin.removeprefix(f'{home}.')}"
            continue
        for alias in node.names:
            name = dotted_name(alias.name)
            yield f"{home}.{name}", f"{analysis.key}.{imports.bound(alias)}"
    top = analysis.scopes[analysis.module]
    for target, value in analysis.facts.assignments:  # `Groups = base.Groups`
        if isinstance(target, cst.Name) and analysis.scopes.get(target) is top:
            yield analysis.names.of(value) or "", f"{analysis.key}.{target.value}"


def _aliases(analysis: Analysis) -> dict[str, str]:
    """Returns the names of flax.optim that other files can import from this one."""
    origins = {}
    for node in analysis.facts.imports:
        for name, bound, is_dotted in imports.aliases(node):
            origin = analysis.names.resolve_export(name)
            if not is_dotted and is_legacy(origin):
                origins[f"{analysis.key}.{bound}"] = origin
    return origins

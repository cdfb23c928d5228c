"""What a module tells the other files of its program."""

import libcst as cst

from migration_guide.codemod import imports
from migration_guide.codemod.analysis import Analysis
from migration_guide.codemod.kinds import HYPER_PARAMS
from migration_guide.codemod.names import is_legacy
from migration_guide.codemod.project import Project, portable


def exported(analysis: Analysis) -> Project:
    """What a module says of its fields, functions, classes and imports."""
    facts = analysis.facts
    functions = {
        analysis.function_name(f): portable(analysis.returned(f))
        for f in facts.functions
        if isinstance(f, cst.FunctionDef)
    }
    fields = {name: portable(kind) for name, kind in analysis.fields.items()}
    classes = [f"{analysis.key}.{c.name.value}" for c in analysis.legacy_classes]
    return Project(
        fields={name: kind for name, kind in fields.items() if kind},
        returns={name: kind for name, kind in functions.items() if kind},
        own_apply_gradient=bool(analysis.own_classes),
        rate_per_call=analysis.rate_per_call,
        keywords=frozenset(a.keyword.value for c in facts.calls for a in c.args if a.keyword),
        definitions=frozenset(classes),
        steps=len(analysis.applications),
        given=analysis.given,
        uses_optim=analysis.uses_optim,
        expected=analysis.expected,
        aliases=_aliases(analysis),
        calls_classes=analysis.calls_classes,
        overridden=analysis.overridden,
        reads_hyper_params=any(analysis.holds(a, HYPER_PARAMS) for a in facts.attributes),
    )


def _aliases(analysis: Analysis) -> dict[str, str]:
    """What of flax.optim other files can import from this one."""
    found = {}
    for node in analysis.facts.imports:
        for name, bound, is_dotted in imports.aliases(node):
            origin = analysis.names.followed(name)
            if not is_dotted and is_legacy(origin):
                found[f"{analysis.key}.{bound}"] = origin
    return found

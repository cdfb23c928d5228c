# pyright: strict
"""`--rename`: local variables named `optimizer` that hold a TrainState are called `state`."""

from collections.abc import Callable

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import DEFINITION, OPTIMIZER
from migration_guide.codemod.reading.imports import references
from migration_guide.codemod.reading.tree import parents, transform, walk

OLD, NEW = "optimizer", "state"


def rename_variable(
    analysis: Analysis, updated: cst.Module, is_skipped: Callable[[cst.CSTNode], bool]
) -> tuple[cst.Module, int]:
    """The module with the variable renamed wherever it occurs, and how often."""
    names = _variables(analysis.module)
    uses = [name for name in names if name.value == OLD]
    safe = (
        uses
        and OLD not in analysis.program.keywords
        and NEW not in {name.value for name in names}
        and NEW not in references(updated)
        and all(
            analysis.holds(node, OPTIMIZER)
            and DEFINITION not in analysis.kind(node)
            and not analysis.scopes[node].is_class
            and not is_skipped(node)
            for node in uses
        )
    )
    if not safe:
        return updated, 0
    places = {name for name in _variables(updated) if name.value == OLD}
    new = transform(updated, lambda old, new: new.with_changes(value=NEW) if old in places else new)
    return new, len(places)


def _variables(module: cst.Module) -> list[cst.Name]:
    """Returns all names but those of attributes and keywords."""
    above = parents(module)
    names = [node for node in walk(module) if isinstance(node, cst.Name)]
    return [
        name
        for name in names
        if name is not getattr(above[name], "attr", None)
        and name is not getattr(above[name], "keyword", None)
    ]

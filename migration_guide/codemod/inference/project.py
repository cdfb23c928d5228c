"""The facts that the files of one program share."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from migration_guide.codemod.inference.kinds import (
    Function,
    Instance,
    Items,
    Kind,
    Several,
    Sign,
    join_kinds,
)


@dataclass
class Project:
    """Facts from the other files of the run."""

    fields: dict[str, Kind] = field(default_factory=dict)
    returns: dict[str, Kind] = field(default_factory=dict)
    values: dict[str, Kind] = field(default_factory=dict)  # of modules' variables
    unclear: frozenset[str] = frozenset()  # such variables, made of definitions in another way
    own_apply_gradient: bool = False
    rate_per_call: bool = False
    keywords: frozenset[str] = frozenset()
    definitions: frozenset[str] = frozenset()
    steps: int = 0
    argument_kinds: dict[str, dict[int | str, Kind]] = field(default_factory=dict)
    uses_optim: bool = False
    modules: frozenset[str] = frozenset()
    expected: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    calls_classes: bool = False
    overridden_names: frozenset[str] = frozenset()
    reads_hyper_params: bool = False
    uses_pmap: bool = False
    leaves_some: bool = False
    jax_modules: frozenset[str] = frozenset()
    legacy_arguments: dict[str, frozenset[int | str]] = field(default_factory=dict)
    legacy_results: frozenset[str] = frozenset()
    legacy_fields: frozenset[str] = frozenset()
    own_groups: frozenset[str] = frozenset()
    half_precision: dict[Path, Sign] = field(default_factory=dict)
    follows_arrays: bool = False

    def for_another_library(self) -> "Project":
        """Returns the facts for a file that trains with another library: none about optimizers."""
        return Project(
            modules=self.modules,
            jax_modules=self.jax_modules,
            follows_arrays=self.follows_arrays,
            half_precision=self.half_precision,
        )


def merge_projects(projects: Iterable[Project]) -> Project:
    """Merges the facts of all files."""
    total = Project()
    for project in projects:
        for name, facts in vars(project).items():
            setattr(total, name, _merge(getattr(total, name), facts))
    return total


def changed_names(old: Project, new: Project) -> set[str]:
    """The names of which two programs' facts differ, and the facts that are not of names."""
    changed: set[str] = set()
    for fact, old_value in vars(old).items():
        new_value = getattr(new, fact)
        if isinstance(old_value, dict):
            keys = old_value.keys() | new_value.keys()
            changed |= {str(key) for key in keys if old_value.get(key) != new_value.get(key)}
        elif isinstance(old_value, frozenset):
            changed |= old_value ^ new_value
        elif old_value != new_value:
            changed.add(fact)
    return {name.rpartition(".")[2] for name in changed}


def _merge(first: Any, second: Any) -> Any:
    """Merges two facts of a type: either of them, their sum or their union."""
    match first:
        case bool() | tuple():
            return first or second
        case int():
            return first + second
        case frozenset():
            return join_kinds([first, second])
        case dict():
            shared = {key: _merge(first[key], second[key]) for key in first.keys() & second.keys()}
            return first | second | shared
        case _:
            return second


def portable(kind: Kind) -> Kind:
    """Returns the part of a kind that means something to other modules: no functions or classes."""
    atoms: list[str | Function | Instance | Several | Items] = []
    for atom in kind:
        if isinstance(atom, Several):
            atoms.append(Several(tuple(map(portable, atom.items))))
        elif isinstance(atom, Items):
            atoms.append(Items(portable(atom.kind)))
        elif isinstance(atom, str):
            atoms.append(atom)
    return frozenset(a for a in atoms if _says_something(a))


def _says_something(atom: object) -> bool:
    if isinstance(atom, Several):
        return any(atom.items)
    return bool(atom.kind) if isinstance(atom, Items) else True

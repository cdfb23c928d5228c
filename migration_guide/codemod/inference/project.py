"""The facts that the files of one program share."""

from collections.abc import Iterable
from dataclasses import dataclass, field
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
    """Facts from the other files of the run.

    Attributes:
      fields: name of a field -> what was put into one of that name.
      returns: `module.function` (last parts) -> what it returns.
      own_apply_gradient: a class of the project's own defines `apply_gradient`.
      rate_per_call: some call overrides hyper-parameters, so definitions must take them per call.
      keywords: names of all arguments that are given by keyword.
      definitions: `module.Class` of the project's own subclasses of OptimizerDef.
      steps: number of calls of `apply_gradient`.
      argument_kinds: `module.function` -> what is given to it, by position or keyword.
      uses_optim: some file imports flax.optim.
      modules: names of all files of the program and of their folders.
      expected: `module.function` -> what its use elsewhere shows that it returns.
      aliases: `module.name` -> the name within flax that it is imported as there.
      calls_classes: some call makes a definition of a class that is chosen at run time.
      overridden_names: hyper-parameters that some step gives.
      reads_hyper_params: some file reads what a definition was made with.
      uses_pmap: some file maps over devices, or replicates for that.
      leaves_some: with `--recipe standalone`, some definition stays on this package.
      jax_modules: names of files that import JAX or Flax, by themselves or from each other.
      legacy_arguments: `module.function` -> the positions and names of arguments that stay legacy
        code.
      legacy_results: `module.function` of those whose results do.
      legacy_fields: names of fields that hold such.
      own_groups: `module.Class` of subclasses of MultiOptimizer.
      half_precision: where parameters may be in half precision, as far as the sources show.
      follows_arrays: whether the analysis finds out what is an array by itself, and no tree.
    """

    fields: dict[str, Kind] = field(default_factory=dict)
    returns: dict[str, Kind] = field(default_factory=dict)
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
    half_precision: tuple[Sign, ...] = ()
    follows_arrays: bool = False

    def for_another_library(self) -> "Project":
        """Returns the facts for a file that trains with another library: none about optimizers."""
        return Project(
            modules=self.modules,
            jax_modules=self.jax_modules,
            follows_arrays=self.follows_arrays,
            half_precision=self.half_precision,
        )


def merge_projects(parts: Iterable[Project]) -> Project:
    """Merges the facts of all files."""
    total = Project()
    for part in parts:
        for name, facts in vars(part).items():
            setattr(total, name, _merge(getattr(total, name), facts))
    return total


def _merge(first: Any, second: Any) -> Any:
    """Merges two facts of a type: either of them, their sum, or what both have."""
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

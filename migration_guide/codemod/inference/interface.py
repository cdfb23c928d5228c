# pyright: strict
"""The interface between the parts of the analysis."""

from collections.abc import Collection
from typing import Protocol

import libcst as cst

from migration_guide.codemod.inference.facts import Callable_, Facts
from migration_guide.codemod.inference.kinds import Kind
from migration_guide.codemod.inference.project import Project
from migration_guide.codemod.reading.names import Names


class Inference(Protocol):
    """The analysis of a module: its facts so far, and the methods that add to them.

    Attributes:
      names: what the module imports.
      facts: the places at which values move.
      project: facts from other files.
      fields: name of a field -> what was put into one of that name.
      external: calls into modules that this run does not see, which make a definition.
      legacy: constructor calls of flax.optim whose definition goes into one of the user's own.
      own_classes: classes of the module that define `apply_gradient` themselves.
    """

    names: Names
    facts: Facts
    project: Project
    fields: dict[str, Kind]
    external: set[cst.CSTNode]
    legacy: set[cst.CSTNode]
    own_classes: list[cst.ClassDef]

    @property
    def uses_optim(self) -> bool:
        """True if the module uses flax.optim."""
        ...

    def kind(self, node: cst.CSTNode) -> Kind:
        """Returns the kind of an expression."""
        ...

    def return_kind(self, function: cst.CSTNode) -> Kind:
        """Returns the kind of what a function of the module may return."""
        ...

    def parameter_kind(self, function: Callable_, parameter: cst.Param) -> Kind:
        """Returns the kind of a parameter."""
        ...

    def from_unknown(self, node: cst.CSTNode) -> bool:
        """True if a variable is made by calling an unknown class."""
        ...

    def assign(self, target: cst.CSTNode, kind: Kind) -> None:
        """Adds to the kind of a target."""
        ...

    def assign_field(self, name: str, kind: Kind) -> None:
        """Adds to the kind of fields of a name."""
        ...

    def assign_parameter(self, function: Callable_, parameter: cst.Param, kind: Kind) -> None:
        """Adds to the kind of a parameter."""
        ...

    def function_name(self, function: Callable_) -> str:
        """Returns the name by which other files refer to a function."""
        ...

    def makes_own_definition(self, call: cst.Call) -> bool:
        """True if a call makes an instance of a definition class of the user's own."""
        ...

    def makes_own_groups(self, call: cst.Call) -> bool:
        """True if it makes one of a class of the user's own that derives from MultiOptimizer."""
        ...

    def assigned_to(self, node: cst.Name) -> list[cst.BaseExpression]:
        """Returns all values assigned to a variable."""
        ...

    def mark(self, marked: set[cst.CSTNode], node: cst.CSTNode) -> None:
        """Adds a node to `external` or `legacy`."""
        ...

    def expect(self, name: str, what: str) -> None:
        """Notes the kind that a function of another file must return."""
        ...

    def note_array_target(self) -> None:
        """Notes that some optimizer's target is an array by itself."""
        ...

    def imported_function(self, call: cst.Call) -> str | None:
        """Returns the imported name of the called function, if another file defines it."""
        ...

    def demand_argument(self, function: Callable_, keys: Collection[int | str]) -> None:
        """Notes for other files which of their arguments stay legacy code."""
        ...

    def demand_result(self, name: str) -> None:
        """Notes for other files that a function of theirs returns legacy code."""
        ...

    def demand_field(self, name: str) -> None:
        """Notes for other files that fields of a name hold legacy code."""
        ...

    def give(self, call: cst.Call) -> None:
        """Notes the kinds of the arguments of other files' functions."""
        ...

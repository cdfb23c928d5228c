"""Questions of rules about a file: names, kinds and ancestors of its nodes, the options."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import (
    DEFINITION,
    HYPER_PARAMS,
    OPTIMIZER,
    TRAVERSAL,
    Sign,
)
from migration_guide.codemod.reading.names import OPTIM
from migration_guide.codemod.results import Options
from migration_guide.codemod.writing import public_optax

T = TypeVar("T")


@dataclass
class Questions:
    """The analysis of a file, and the user's options, as rules ask them."""

    analysis: Analysis
    options: Options
    _made: dict[Any, Any] = field(default_factory=dict, kw_only=True)

    def name(self, node: cst.CSTNode) -> str:
        """The canonical dotted name of an imported thing, or ""."""
        return self.analysis.names.of(node) or ""

    def legacy(self, node: cst.CSTNode) -> str:
        """The name within flax.optim, or ""."""
        name = self.name(node)
        return name.removeprefix(f"{OPTIM}.") if name.startswith(f"{OPTIM}.") else ""

    def is_optimizer(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, OPTIMIZER)

    def is_definition(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, DEFINITION)

    def is_hyper_params(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, HYPER_PARAMS)

    def is_traversal(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, TRAVERSAL)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.analysis.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def call_of(self, node: cst.CSTNode) -> cst.Call | None:
        """Returns the call of a callee, `f(...)` of `f`; None for other expressions."""
        above = self.parent(node)
        return above if isinstance(above, cst.Call) and above.func is node else None

    def line(self, node: cst.CSTNode) -> int:
        return self.analysis.line(node)

    def in_annotation(self, node: cst.CSTNode) -> bool:
        return any(isinstance(a, cst.Annotation) for a in self.ancestors(node))

    def legacy_class(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The user's own definition class that a node is in; its body stays legacy code."""
        classes = self.analysis.legacy_classes
        for ancestor in self.ancestors(node) if classes else ():
            if isinstance(ancestor, cst.ClassDef) and ancestor in classes:
                return ancestor
        return None

    @functools.cached_property
    def rate_per_call(self) -> bool:
        """True if definitions must take hyper-parameters per call."""
        program = self.analysis.program
        if self.analysis.applications:
            return self.analysis.shared.rate_per_call or program.reads_hyper_params
        return program.rate_per_call

    @property
    def half_precision(self) -> Sign | None:
        """The line that says that parameters may be in half precision."""
        return self.analysis.project.half_precision.get(self.analysis.path)

    @property
    def uses_optim(self) -> bool:
        """True if some file of the program imports flax.optim."""
        return self.analysis.program.uses_optim

    @functools.cached_property
    def is_optax_alone(self) -> bool:
        """True if definitions and steps of the file are written for public Optax."""
        return self.options.optax_alone and public_optax.is_possible(self.analysis)

    @functools.cached_property
    def program_leaves_some(self) -> bool:
        """True if some definition of the program stays on this package."""
        return self.options.optax_alone and public_optax.program_leaves_some(self.analysis)

    def string(self, place: cst.CSTNode, text: str) -> cst.SimpleString:
        """A literal for a place in the original, with quotes that an f-string around it allows."""
        around = [a.start for a in self.ancestors(place) if isinstance(a, cst.FormattedString)]
        quote = "'" if any(start.endswith('"') for start in around) else '"'
        return cst.SimpleString(f"{quote}{text}{quote}")

    def code(self, node: cst.CSTNode) -> str:
        return self.analysis.module.code_for_node(node).strip()

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The innermost statement around a node that comments can stand above."""
        if hasattr(node, "leading_lines") and isinstance(node, cst.BaseStatement):
            return node
        return next(
            a
            for a in self.ancestors(node)
            if hasattr(a, "leading_lines") and isinstance(a, cst.BaseStatement)
        )

    def once(self, make: Callable[[Any], T]) -> T:
        """Returns the result of a function of the whole file, computed once."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

# pyright: strict
"""Scopes of Python and the names that they bind, as far as a rewriter asks for them."""

from dataclasses import dataclass, field

import libcst as cst


@dataclass(eq=False)
class Assignment:
    """One place that binds a name."""

    name: str
    scope: "Scope"
    node: cst.CSTNode
    imported: str = ""

    def qualified_name(self, text: str) -> str:
        """`flax.optim.Adam` of `o.Adam`, where this is `o` and imported as `flax.optim`."""
        return self.imported + text[len(self.name) :]


@dataclass(eq=False)
class Scope:
    """A module, class, function or comprehension."""

    parent: "Scope | None" = None
    is_class: bool = False
    is_comprehension: bool = False
    bound: dict[str, list[Assignment]] = field(default_factory=dict[str, list[Assignment]])
    elsewhere: "dict[str, Scope]" = field(default_factory=lambda: dict[str, Scope]())

    @property
    def is_module(self) -> bool:
        """True if this is the outermost scope."""
        return self.parent is None

    @property
    def module(self) -> "Scope":
        """The outermost scope."""
        return self if self.parent is None else self.parent.module

    def find(self, name: str) -> list[Assignment]:
        """Returns the bindings of a name that is used here."""
        scope: Scope | None = self
        while scope is not None:
            if scope is self or not scope.is_class:
                if name in scope.elsewhere:
                    return scope.elsewhere[name].find(name)
                if name in scope.bound:
                    return scope.bound[name]
            scope = scope.parent
        return []

    def bind(self, name: str, node: cst.CSTNode, imported: str = "") -> None:
        """Adds a binding of a name."""
        home = self.elsewhere.get(name, self)
        home.bound.setdefault(name, []).append(Assignment(name, home, node, imported))

# pyright: strict
"""The part of a module that its context needs."""

from collections.abc import Mapping
from typing import Any, Protocol


class ModuleNode(Protocol):
    """A node in a tree of modules: what of `Module` contexts make use of."""

    @property
    def name(self) -> str:
        """The name of the module."""
        ...

    @property
    def parent(self) -> "ModuleNode | None":
        """The module that it is a child of."""
        ...

    @property
    def children(self) -> Mapping[str, "ModuleNode"]:
        """Its children by name."""
        ...

    def path_to_descendant_module(self, module: "ModuleNode") -> list[str]:
        """The names from this module to one below it."""
        ...

    def get_shared_module(self, name_or_module: "str | ModuleNode") -> Any:
        """Name, module and state of a module that an ancestor shares."""
        ...

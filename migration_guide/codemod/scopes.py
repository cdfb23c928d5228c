"""LibCST's scopes of a module: which names are bound where.

Its wrapper takes the whole tree through a visitor for each kind of metadata, and every blank of it.
Here the two that are needed are asked directly.
"""

from typing import Any

import libcst as cst
from libcst.metadata import ExpressionContextProvider, ScopeProvider


class _Contexts(ExpressionContextProvider):
    def __init__(self):
        super().__init__()
        self.known: dict[cst.CSTNode, Any] = {}

    def set_metadata(self, node: cst.CSTNode, value: Any) -> None:
        self.known[node] = value


class _Scopes(ScopeProvider):
    def __init__(self, contexts: dict[cst.CSTNode, Any]):
        super().__init__()
        self._contexts = contexts
        self.known: dict[cst.CSTNode, Any] = {}

    def get_metadata(self, key: Any, node: cst.CSTNode, default: Any = None) -> Any:
        return (self._contexts if key is ExpressionContextProvider else self.known).get(
            node, default
        )

    def set_metadata(self, node: cst.CSTNode, value: Any) -> None:
        self.known[node] = value


def scopes(module: cst.Module) -> dict[cst.CSTNode, Any]:
    """Node -> the scope that it is in, of all nodes but those of the layout."""
    contexts = _Contexts()
    contexts.visit_Module(module)
    found = _Scopes(contexts.known)
    found.visit_Module(module)
    return found.known

# pyright: strict
"""Known kinds of variables, fields and results, and of expressions that read them.

Inference goes over a module until nothing changes. An expression is computed again only where a
variable, a field or a result that it read has changed since.
"""

from collections.abc import Callable
from typing import TypeVar

import libcst as cst

from migration_guide.codemod.inference.kinds import NOTHING, Kind, join_kinds

# A variable by its scope and name, a field by its name, a function's result by the function's `id`.
Cell = tuple[int, str] | str | int
AnyCell = TypeVar("AnyCell", tuple[int, str], str, int)
_ALL = ""  # means every cell
_UNFINISHED = -1  # read by an expression that contains itself, which adds nothing


class Cells:
    """The known kinds of one module; containers nested too deeply have none."""

    def __init__(self):
        self.variables: dict[tuple[int, str], Kind] = {}
        self.fields: dict[str, Kind] = {}
        self.results: dict[int, Kind] = {}
        self._changed: set[Cell] = set()
        self._reads: set[Cell] = set()
        # By `id`: LibCST's nodes hash in Python. The entry holds the node to keep it alive.
        self._expressions: dict[int, tuple[Kind, cst.CSTNode, set[Cell]]] = {}

    @property
    def has_changed(self) -> bool:
        """True if something was added since `forget_changed`."""
        return bool(self._changed)

    def read(self, kinds: dict[AnyCell, Kind], cell: AnyCell) -> Kind:
        """Returns the kind of a cell, for the expression that is computed now."""
        self._reads.add(cell)
        return kinds.get(cell, NOTHING)

    def add(self, kinds: dict[AnyCell, Kind], cell: AnyCell, kind: Kind) -> None:
        """Adds to the kind of a cell."""
        old = kinds.get(cell, NOTHING)
        new = join_kinds([old, kind])
        if new - old:
            kinds[cell] = new
            self._changed.add(cell)

    def change_all(self) -> None:
        """Notes that any expression may have another kind now."""
        self._changed.add(_ALL)

    def of(self, node: cst.CSTNode, compute: Callable[[cst.CSTNode], Kind]) -> Kind:
        """Returns the kind of an expression, computed if it has to be."""
        entry = self._expressions.get(id(node))
        if entry is None:
            outer, self._reads = self._reads, set()
            self._expressions[id(node)] = NOTHING, node, {_UNFINISHED}
            entry = self._expressions[id(node)] = compute(node), node, self._reads
            self._reads = outer
        self._reads |= entry[2]
        return entry[0]

    def forget_changed(self) -> None:
        """Forgets the expressions that read a changed cell."""
        changed = self._changed | {_UNFINISHED}
        entries = {} if _ALL in changed else self._expressions
        self._expressions = {
            number: entry for number, entry in entries.items() if entry[2].isdisjoint(changed)
        }
        self._changed = set()

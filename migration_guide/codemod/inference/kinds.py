# pyright: strict
"""A small lattice of the things that an expression may hold, as far as a rewriter cares.

A `Kind` is a set of possibilities. Definition and optimizer have no method in common, so that a
name which holds first the one and then the other is rewritten by the method that is used.
"""

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

DEFINITION = "definition"  # an OptimizerDef; a transformation after the rewrite
OPTIMIZER = "optimizer"  # an Optimizer; a TrainState after the rewrite
REPLICATED = "replicated"  # an Optimizer of `.replicate()`, whose steps average gradients
STATE = "state"  # an OptimizerState
HYPER_PARAMS = "hyper_params"  # of a definition, or the list of them of a MultiOptimizer
TRAVERSAL = "traversal"
CLASS = "class"  # an optimizer class taken as a value
CREATE = "create"  # the bound method
OWN_GROUPS = "own groups"  # of a user's own subclass of MultiOptimizer, and its optimizer
LEGACY = (
    "legacy"  # a definition that stays one, for a definition of the user's own; its hyper_params
)
ARRAY = "array"  # followed with `--recipe optax` alone
FOREIGN = "foreign"  # an optimizer of another library


@dataclass(frozen=True)
class Function:
    """A function of the file, with some positional arguments bound already."""

    node: cst.FunctionDef | cst.Lambda
    bound: int = 0


@dataclass(frozen=True)
class Instance:
    """An instance of a class of the file."""

    node: cst.ClassDef


@dataclass(frozen=True)
class Several:
    """A tuple of known length."""

    items: tuple["Kind", ...]


@dataclass(frozen=True)
class Items:
    """A list, dict or any other container, by the kind of its items."""

    kind: "Kind"


Kind = frozenset[str | Function | Instance | Several | Items]

NOTHING: Kind = frozenset()
_DEEPEST = 4


@functools.lru_cache(maxsize=512)
def depth(kind: Kind) -> int:
    """Returns the depth to which tuples and containers are nested."""
    inner = [k for atom in kind for k in _inside(atom)]
    return 1 + max(map(depth, inner), default=0) if inner else 0


def join_kinds(kinds: Iterable[Kind]) -> Kind:
    """Joins kinds; tuples of the same length are joined item by item."""
    distinct = {kind for kind in kinds if kind}
    if len(distinct) <= 1:  # as a rule
        kind = distinct.pop() if distinct else NOTHING
        return kind if depth(kind) <= _DEEPEST else frozenset(a for a in kind if not _inside(a))
    atoms = {atom for kind in distinct for atom in kind}
    plain: set[str | Function | Instance | Several | Items] = {
        atom for atom in atoms if not isinstance(atom, Several | Items)
    }
    tuples: dict[int, list[Several]] = {}
    for atom in atoms:
        if isinstance(atom, Several):
            tuples.setdefault(len(atom.items), []).append(atom)
    for group in tuples.values():
        plain.add(
            Several(
                tuple(join_kinds(column) for column in zip(*(g.items for g in group), strict=True))
            )
        )
    containers = [atom.kind for atom in atoms if isinstance(atom, Items)]
    if containers:
        plain.add(Items(join_kinds(containers)))
    result = frozenset(plain)
    # A program that nests without end must not keep the analysis going without end.
    return result if depth(result) <= _DEEPEST else frozenset(a for a in plain if not _inside(a))


def item(kind: Kind, index: int | None = None) -> Kind:
    """Returns the kind of a container's items; of one item, for a tuple and a known index."""
    items: list[Kind] = []
    for atom in kind:
        if isinstance(atom, Items):
            items.append(atom.kind)
        elif isinstance(atom, Several):
            if index is None:
                items += atom.items
            elif -len(atom.items) <= index < len(atom.items):
                items.append(atom.items[index])
        elif atom in (HYPER_PARAMS, CLASS):
            items.append(frozenset([atom]) | (kind & {LEGACY}))
    return join_kinds(items)


def items(kinds: Iterable[Kind]) -> Kind:
    """Returns the kind of a container of such items."""
    inside = join_kinds(kinds)
    return frozenset([Items(inside)]) if inside else NOTHING


def within(kind: Kind) -> Iterator[str | Function | Instance | Several | Items]:
    """Yields the atoms of a kind and of the kinds inside them, at any depth."""
    for atom in kind:
        yield atom
        for inner in _inside(atom):
            yield from within(inner)


def only(atom: str) -> Kind:
    """The kind with one possibility."""
    return frozenset([atom])


def _inside(atom: object) -> tuple[Kind, ...]:
    if isinstance(atom, Several):
        return atom.items
    return (atom.kind,) if isinstance(atom, Items) else ()


@dataclass(frozen=True, order=True)
class Sign:
    """A place that says, or leaves open, that parameters may be in half precision."""

    path: str
    line: int
    text: str
    cell: int = 0

    def __str__(self) -> str:
        place = f"cell {self.cell}:{self.line}" if self.cell else str(self.line)
        return f"{self.path}:{place}: {self.text}"

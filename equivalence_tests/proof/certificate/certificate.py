"""The obligations of a proof as plain data, from which another program can check it.

Operations, atoms, quotients of polynomials and texts are rows of the tables `nodes`, `atoms`,
`quotients` and `texts`, and others refer to them by their numbers.
"""

import json
from collections.abc import Sequence
from typing import Any

from equivalence_tests.proof.algebra.algebra import Algebra
from equivalence_tests.proof.algebra.atoms import to_lists
from equivalence_tests.proof.bits.graph import Graph, Node
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.induction.equality import Level
from equivalence_tests.proof.induction.induction import Induction, Related
from equivalence_tests.proof.induction.world import Obligation, is_constant
from equivalence_tests.proof.reals.indexing import indices
from equivalence_tests.proof.reals.reals import Reals

VERSION = 4
_LONGEST = 2000  # of a normal form as text; as terms it is whole
_CAPACITY = 256  # atoms of a leaf of a state


def rows_of_case(graph: Graph, induction: Induction) -> Json:
    """The states and obligations of one case as plain data."""
    tables = _Tables()
    rows = [_row(each, tables) for each in induction.obligations]
    return {
        "states": _state_rows(graph, induction, tables),
        "obligations": rows,
        "nodes": tables.nodes,
        "quotients": tables.quotients.rows,
        "atoms": tables.atoms.rows,
        "texts": tables.texts.rows,
    }


class _Table:
    """Data in rows, each once."""

    def __init__(self):
        self.rows: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, row: Any) -> int:
        """The number of a row; it is appended where it is new."""
        key = json.dumps(row)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(row)
        return self._numbers[key]


class _Tables:
    """The tables of one case."""

    def __init__(self):
        self.quotients, self.atoms, self.texts = _Table(), _Table(), _Table()
        self.nodes: list[list[Any]] = []
        self._nodes: dict[int, int] = {}

    def terms(self, terms: Json) -> list[int]:
        """Values with atoms of their own, by the numbers of the quotients here."""
        atoms: list[int] = []

        def quotient(value: list[Any]) -> int:
            moved = [
                [
                    [number, [[atoms[atom], power] for atom, power in factors]]
                    for number, factors in p
                ]
                for p in value
            ]
            return self.quotients.number(moved)

        for atom in terms["atoms"]:
            atoms.append(self.atoms.number({**atom, "args": [quotient(a) for a in atom["args"]]}))
        return [quotient(value) for value in terms["values"]]

    def node(self, node: Node) -> int:
        """The number of a node, whose operands stand before it."""
        waiting = [node]
        while waiting:
            here = waiting[-1]
            missing = [arg for arg in here.args if arg.id not in self._nodes]
            if here.id in self._nodes or missing:
                if here.id in self._nodes:
                    waiting.pop()
                waiting += missing
                continue
            waiting.pop()
            self._nodes[here.id] = len(self.nodes)
            args = [self._nodes[arg.id] for arg in here.args]
            texts = (str(here.params) if here.params else "", f"{here.dtype}{list(here.shape)}")
            self.nodes.append([here.op, args, *map(self.texts.number, texts)])
        return self._nodes[node.id]


def _state_rows(graph: Graph, induction: Induction, tables: _Tables) -> list[Json]:
    """The states as they are related, leaf by leaf."""

    def leaf(node: Node, symbol: str | None, column: Sequence[Node]) -> int | str | None:
        constant = is_constant(node)
        if all(each is node for each in column) if constant else symbol is not None:
            return symbol
        algebra = Algebra(_CAPACITY)
        value = Reals(graph, algebra).entry(node, indices(node.shape))
        return tables.terms(to_lists(algebra.atoms, value))[0]

    def leaves(states: Related, side: int) -> list[int | str | None]:
        columns = zip(*(each.sides[side] for each in induction.states), strict=True)
        return list(map(leaf, states.sides[side], induction.symbols[side], columns))

    return [
        {
            "where": [list(each) for each in states.counters],
            "leaves": [leaves(states, side) for side in (0, 1)],
        }
        for states in induction.states
    ]


def _row(obligation: Obligation, tables: _Tables) -> Json:
    equality = obligation.equality
    row: Json = {
        "when": obligation.when,
        "leaf": obligation.leaf,
        "level": equality.level.name.lower(),
    }
    if obligation.params:
        row["params"] = True
    if not equality.general:
        row["general"] = False
    if obligation.counters:
        row["where"] = [list(each) for each in obligation.counters]
    if equality.assumptions:
        row["assumptions"] = [tables.texts.number(text) for text in equality.assumptions]
    if equality.stopped:
        row["stopped"] = equality.stopped
    if equality.forms is not None and equality.level is Level.UNKNOWN:
        texts = [
            form if len(form) <= _LONGEST else form[:_LONGEST] + " ..." for form in equality.forms
        ]
        row["forms"] = dict(zip(("left", "right"), texts, strict=True))
    if equality.terms is not None:
        row["places"] = list(obligation.results)
        row["terms"] = tables.terms(equality.terms)
    if equality.level is Level.IDENTICAL:
        row["node"] = tables.node(obligation.nodes[0])
    return row

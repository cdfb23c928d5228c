"""What was to prove as plain data, from which another program can check it."""

from collections.abc import Sequence
from typing import Any

from equivalence_tests.proof.comparing import Level
from equivalence_tests.proof.graph import Node
from equivalence_tests.proof.induction import Obligation

VERSION = 1
_MOST_NODES = 2000
_LONGEST = 2000  # of a normal form as text; as terms it is whole


def obligation_rows(obligations: Sequence[Obligation]) -> list[dict[str, Any]]:
    """The obligations of one case as plain data.

    Returns:
      A row for each: `when`, `leaf`, `level` and what else is known. One that is identical has one
      `program` for both sides, or as `program_of` the `node` of an earlier row with that program;
      one that is equal over the reals has both normal forms, as text and as nested terms.
    """
    programs: dict[int, list[Any]] = {}
    return [_row(each, programs) for each in obligations]


def _row(obligation: Obligation, programs: dict[int, list[Any]]) -> dict[str, Any]:
    equality = obligation.equality
    row: dict[str, Any] = {
        "when": obligation.when,
        "leaf": obligation.leaf,
        "level": equality.level.name.lower(),
        "params": obligation.params,
        "places": list(obligation.places),
        "general": equality.general,
    }
    if obligation.where:
        row["where"] = [list(each) for each in obligation.where]
    if equality.assumptions:
        row["assumptions"] = equality.assumptions
    if equality.stopped:
        row["stopped"] = equality.stopped
    if equality.forms is not None:
        texts = [
            form if len(form) <= _LONGEST else form[:_LONGEST] + " ..." for form in equality.forms
        ]
        row["forms"] = dict(zip(("left", "right"), texts, strict=True))
    if equality.terms is not None:
        row["terms"] = equality.terms
    if equality.level is Level.IDENTICAL:
        node = obligation.nodes[0]
        if node.id not in programs:
            programs[node.id] = _program(node)
            row["program"] = programs[node.id]
        else:
            row["program_of"] = node.id
        row["node"] = node.id
    return row


def _program(node: Node) -> list[Any]:
    """The operations that a node is computed with, operands first."""
    rows: list[Any] = []
    known: set[int] = set()
    waiting = [node]
    while waiting:
        here = waiting[-1]
        missing = [arg for arg in here.args if arg.id not in known]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        if here.id in known:
            continue
        known.add(here.id)
        args = [arg.id for arg in here.args]
        kind = f"{here.dtype}{list(here.shape)}"
        rows.append([here.id, here.op, args, str(here.params) if here.params else "", kind])
        if len(rows) == _MOST_NODES:
            return [*rows, ["..."]]
    return rows

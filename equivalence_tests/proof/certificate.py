"""A proof as plain data, from which another program can check it."""

from typing import Any

import jax

from equivalence_tests.proof.comparing import Level
from equivalence_tests.proof.graph import Node
from equivalence_tests.proof.induction import Obligation
from equivalence_tests.proof.result import CaseProof, Proof

VERSION = 1
_MOST_NODES = 2000
_LONGEST = 2000  # of a normal form as text; as terms it is whole


def certificate(proof: Proof) -> dict[str, Any]:
    """A proof as plain data.

    Returns:
      `verdict`, the sides' names and kinds, `symbols` (hyper-parameters that may be any number),
      `shapes`, `assumptions`, `counterexample`, and `cases`, each with its `relation` and
      `obligations`. An obligation that is identical has one `program` for both sides; one that is
      equal over the reals has both normal forms, as text and as nested terms.
    """
    example = proof.counterexample
    return {
        "version": VERSION,
        "verdict": proof.verdict,
        "names": list(proof.names),
        "kinds": list(proof.kinds),
        "symbols": list(proof.symbols),
        "shapes": dict(proof.shapes),
        "general": proof.general,
        "assumptions": list(proof.assumptions),
        "counterexample": None if example is None else example.as_dict(),
        "seconds": proof.seconds,
        "jax": jax.__version__,
        "cases": [_case(case) for case in proof.cases],
    }


def _case(case: CaseProof) -> dict[str, Any]:
    programs: dict[int, list[Any]] = {}
    return {
        "verdict": case.verdict,
        "fixed": dict(case.fixed),
        "excluded": list(case.excluded),
        "stopped": case.stopped,
        "relation": list(case.induction.relation),
        "relation_given": case.induction.given,
        "symbols": [list(each) for each in case.induction.classes],
        "obligations": [_obligation(each, programs) for each in case.induction.obligations],
        "counterexample": None if case.counterexample is None else case.counterexample.as_dict(),
    }


def _obligation(obligation: Obligation, programs: dict[int, list[Any]]) -> dict[str, Any]:
    equality = obligation.equality
    row: dict[str, Any] = {
        "when": obligation.when,
        "leaf": obligation.leaf,
        "level": equality.level.name.lower(),
        "params": obligation.params,
        "places": list(obligation.places),
        "general": equality.general,
    }
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

# pyright: strict
"""Finds the rules in their folder and puts them into an order that suits all of them.

A file in `rules/` that defines one of `HANDLERS` is a rule. It declares its needs in constants,
so that the names of the files mean nothing:

- `RUNS_AFTER`: names of rules whose result on the same node it wants to see.
- `IN_DEFINITIONS`: whether it applies to the bodies of the user's own definition classes as well,
  which otherwise stay legacy code.
- `REMOVES`: dotted names that are gone; imports of them go where nothing uses them.
- `ANSWERS_FOR`: dotted names, or modules, that it rewrites or speaks of itself, so that rules for
  other names that are gone leave them alone.
"""

import graphlib
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import libcst as cst

from migration_guide.codemod import rules

HANDLERS_OF: dict[type[cst.CSTNode], str] = {
    cst.Call: "rewrite_call",
    cst.Attribute: "rewrite_attribute",
    cst.SimpleString: "rewrite_string",
    cst.Comparison: "rewrite_comparison",
    cst.ClassDef: "rewrite_class",
    cst.SimpleStatementLine: "rewrite_statement",
}
HANDLERS = (*HANDLERS_OF.values(), "rewrite_reference", "rewrite_module")


@dataclass(frozen=True)
class Rule:
    """One rule."""

    name: str
    summary: str
    handlers: dict[str, Callable[..., Any]]
    runs_after: tuple[str, ...] = ()
    in_definitions: bool = False
    removes: frozenset[str] = frozenset()
    answers_for: frozenset[str] = frozenset()


def order_rules(unordered: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, each behind those that it runs after."""
    by_name = {rule.name: rule for rule in unordered}
    sorter = graphlib.TopologicalSorter({r.name: r.runs_after for r in by_name.values()})
    return tuple(by_name[name] for name in sorter.static_order())


def _collect_rules() -> tuple[Rule, ...]:
    unordered: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(rules.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{rules.__name__}.{info.name}")
        handlers = {name: getattr(module, name) for name in HANDLERS if hasattr(module, name)}
        if handlers:
            summary = (inspect.getdoc(module) or "").splitlines()[0]
            unordered.append(
                Rule(
                    info.name,
                    summary,
                    handlers,
                    tuple(getattr(module, "RUNS_AFTER", ())),
                    getattr(module, "IN_DEFINITIONS", False),
                    frozenset(getattr(module, "REMOVES", ())),
                    frozenset(getattr(module, "ANSWERS_FOR", ())),
                )
            )
    return order_rules(unordered)


RULES: tuple[Rule, ...] = _collect_rules()

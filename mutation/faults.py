"""Single faults in a module: what cosmic-ray's operators can change and a test could see."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
      module: path of the file, from the root.
      operator: cosmic-ray's name of what is changed into what.
      occurrence: which of the places in the file.
      line: its line.
    """

    module: str
    operator: str
    occurrence: int
    line: int

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.operator} #{self.occurrence}"

    def planted(self, source: str) -> str:
        """The module's text with the fault in it."""
        code = mutate_code(
            source, cosmic_ray.plugins.get_operator(self.operator)(), self.occurrence
        )
        if code is None:
            raise ValueError(f"{self}: the module has no such place")
        return code


def faults_of(module: str, source: str) -> list[Fault]:
    """All faults that there can be in a module's text."""
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name in sorted(cosmic_ray.plugins.operator_names()):
        kind = cosmic_ray.plugins.get_operator(name)
        if kind.arguments() or name.endswith("NoOp"):
            continue
        operator = kind()
        places = [(node, start) for node in nodes for start, _ in operator.mutation_positions(node)]
        found += [
            Fault(module, name, occurrence, start[0])
            for occurrence, (node, start) in enumerate(places)
            if not _says_nothing(node)
        ]
    return found


def sample(root: Path, modules: Sequence[str], size: int, seed: int) -> list[Fault]:
    """So many faults at random: each place in the modules is as likely as any other.

    Of the operators that could change one place, one is drawn: else `+`, which may become a dozen
    others, would be most of the sample.
    """
    places: dict[tuple[str, int, str], list[Fault]] = {}
    for module in modules:
        for fault in faults_of(module, (root / module).read_text(encoding="utf-8")):
            kind = fault.operator.rpartition("/")[2].partition("_")[0]
            places.setdefault((module, fault.line, kind), []).append(fault)
    rng = random.Random(seed)
    chosen = rng.sample(sorted(places), min(size, len(places)))
    return [rng.choice(places[place]) for place in chosen]


def _says_nothing(node: Any) -> bool:
    """Whether it is in an annotation, which is not run, or in what only guards a programmer."""
    above = node.parent
    if above.type in ("parameters", "param", "typedargslist", "lambdef"):
        # The * before keywords, and the /.
        return node.type == "operator"
    if "TYPE_CHECKING" in above.get_code().partition(":")[0]:
        return True
    if node.type == "except_clause" and "." in node.get_code():  # cosmic-ray knows names alone
        return True
    if above.type == "argument" and above.children[0].get_code().strip() in ("strict", "repr"):
        return True
    while node.parent is not None:
        above = node.parent
        if above.type == "annassign" and above.children.index(node) == 1:
            return True
        if above.type == "tfpdef" or above.type == "decorator":
            return True
        if above.type == "funcdef" and node is above.annotation:
            return True
        node = above
    return False

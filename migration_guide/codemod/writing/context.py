"""The argument of every rule: its questions, its remarks, and its additions to the file."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from migration_guide.codemod.reading.names import is_legacy
from migration_guide.codemod.reading.tree import walk
from migration_guide.codemod.results import Restored
from migration_guide.codemod.writing.remarks import Remarks

Expression = cst.BaseExpression
Line = cst.SimpleStatementLine
New = cst.BaseExpression | None  # what a handler of a rule returns; None where it does not apply


@dataclass
class Context(Remarks):
    """One file under rewriting: its imports and functions to come, and facts for the summary."""

    removed: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
    needed: set[str] = field(default_factory=set)
    named: set[tuple[str, str]] = field(default_factory=set)
    functions: dict[str, str] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    checkpoints: dict[str, Restored] = field(default_factory=dict)
    recipes: set[str] = field(default_factory=set)
    for_float32: bool = False
    rate_at_steps: bool = False
    legacy_names: set[str] = field(default_factory=set)
    compared: dict[str, str] = field(default_factory=dict)

    def reference(self, text: str) -> cst.BaseExpression:
        """A dotted name as an expression, its module imported."""
        self.needed.add(text.split(".")[0])
        return cst.parse_expression(text)

    def by_name(self, module: str, name: str) -> cst.BaseExpression:
        """Returns a reference to a module's member, imported by name unless the name is taken."""
        for scope in set(self.analysis.scopes.values()):
            for bound in scope.bound.get(name, ()):
                if not is_legacy(self.analysis.names.resolve_export(bound.imported)):
                    self.needed.add(module)
                    return cst.parse_expression(f"{module}.{name}")
        self.named.add((module, name))
        return cst.Name(name)

    def source(self, text: str, modules: Sequence[str] = ()) -> cst.BaseExpression:
        """Source text as an expression, with modules that it needs imported."""
        self.needed.update(module.split(".")[0] for module in modules)
        return cst.parse_expression(text, config=self.analysis.module.config_for_parsing)

    def function(self, wish: str, source: str) -> str:
        """The name of a function that the file gets, unless an earlier run has put it there."""
        for node in self.analysis.facts.functions:
            name = node.name.value if isinstance(node, cst.FunctionDef) else ""
            is_named_so = name.rstrip("_") == wish
            if is_named_so and self.code(node) == source.format(name=name).strip():
                return name
        new_name = next((n for n in self.functions if n.rstrip("_") == wish), "")
        if not new_name:
            new_name = self.fresh_name(wish)
            self.functions[new_name] = source.format(name=new_name).strip()
        return new_name

    def fresh_name(self, wish: str) -> str:
        """A variable name that the module does not use."""
        used = {n.value for n in walk(self.analysis.module) if isinstance(n, cst.Name)}
        name = wish
        while name in used:
            name += "_"
        return name

"""The argument of every rule: the analysis of the file, the options, and its messages."""

import functools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import libcst as cst

from migration_guide.codemod.inference.analysis import Analysis
from migration_guide.codemod.inference.kinds import (
    DEFINITION,
    HYPER_PARAMS,
    OPTIMIZER,
    TRAVERSAL,
    Sign,
)
from migration_guide.codemod.reading.marks import NOTE, PREFIX, is_skip, is_skipped
from migration_guide.codemod.reading.names import OPTIM, is_legacy
from migration_guide.codemod.reading.tree import comments, is_statement, walk
from migration_guide.codemod.results import Message, Options, Restored

# Members that an Optimizer had and a TrainState lacks; `apply_gradient` has a rule of its own.
_OLD = frozenset(
    {"target", "optimizer_def", "param_states", "state_dict", "restore_state", "compute_gradient",
     "compute_gradients", "optimize"}
)  # fmt: skip
Expression = cst.BaseExpression
Line = cst.SimpleStatementLine
New = cst.BaseExpression | None  # what a handler of a rule returns; None where it does not apply
QUESTION = "is this an optimizer of flax.optim?"

T = TypeVar("T")


@dataclass
class Context:
    """One file under rewriting."""

    analysis: Analysis
    options: Options
    is_optax_alone: bool = False
    program_leaves_some: bool = False
    removed: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()
    needed: set[str] = field(default_factory=set)
    named: set[tuple[str, str]] = field(default_factory=set)
    remarks: list[tuple[cst.CSTNode, str, bool]] = field(default_factory=list)
    comments: dict[cst.CSTNode, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    checkpoints: dict[str, Restored] = field(default_factory=dict)
    recipes: set[str] = field(default_factory=set)
    for_float32: bool = False
    compared: dict[str, str] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    _made: dict[Any, Any] = field(default_factory=dict)

    def name(self, node: cst.CSTNode) -> str:
        """The canonical dotted name of an imported thing, or ""."""
        return self.analysis.names.of(node) or ""

    def legacy(self, node: cst.CSTNode) -> str:
        """The name within flax.optim, or ""."""
        name = self.name(node)
        return name.removeprefix(f"{OPTIM}.") if name.startswith(f"{OPTIM}.") else ""

    def is_optimizer(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, OPTIMIZER)

    def is_definition(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, DEFINITION)

    def is_hyper_params(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, HYPER_PARAMS)

    def is_traversal(self, node: cst.CSTNode) -> bool:
        return self.analysis.holds(node, TRAVERSAL)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self.analysis.parents.get(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        current = self.parent(node)
        while current is not None:
            yield current
            current = self.parent(current)

    def call_of(self, node: cst.CSTNode) -> cst.Call | None:
        """The call of what an expression names: `f(...)` of `f`; None where it is no call's."""
        above = self.parent(node)
        return above if isinstance(above, cst.Call) and above.func is node else None

    def line(self, node: cst.CSTNode) -> int:
        """The line of a node; of one that was made of a string's text, that of the string."""
        placed = node
        while not self.analysis.has_line(placed):
            placed = self.analysis.parents[placed]
        return self.analysis.line(placed)

    def in_annotation(self, node: cst.CSTNode) -> bool:
        return any(isinstance(a, cst.Annotation) for a in self.ancestors(node))

    def legacy_class(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The user's own definition class that a node is in; its body stays legacy code."""
        classes = self.analysis.legacy_classes
        for ancestor in self.ancestors(node) if classes else ():
            if isinstance(ancestor, cst.ClassDef) and ancestor in classes:
                return ancestor
        return None

    @functools.cached_property
    def rate_per_call(self) -> bool:
        """True if definitions must take hyper-parameters per call."""
        program = self.analysis.program
        if self.analysis.applications:
            return self.analysis.shared.rate_per_call or program.reads_hyper_params
        return program.rate_per_call

    @property
    def half_precision(self) -> Sign | None:
        """The line that says that parameters may be in half precision."""
        return self.analysis.project.half_precision.get(self.analysis.path)

    @property
    def uses_optim(self) -> bool:
        """True if some file of the program imports flax.optim."""
        return self.analysis.program.uses_optim

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

    def string(self, place: cst.CSTNode, text: str) -> cst.SimpleString:
        """A literal for a place in the original, with quotes that an f-string around it allows."""
        around = [a.start for a in self.ancestors(place) if isinstance(a, cst.FormattedString)]
        quote = "'" if any(start.endswith('"') for start in around) else '"'
        return cst.SimpleString(f"{quote}{text}{quote}")

    def source(self, text: str, modules: Sequence[str] = ()) -> cst.BaseExpression:
        """Source text as an expression, with modules that it needs imported."""
        self.needed.update(module.split(".")[0] for module in modules)
        return cst.parse_expression(text, config=self.analysis.module.config_for_parsing)

    def code(self, node: cst.CSTNode) -> str:
        return self.analysis.module.code_for_node(node).strip()

    def by_hand(self, node: cst.CSTNode, text: str) -> None:
        """Leaves a comment above the statement that a node is in, and lists it in the summary."""
        statement = self.statement(node)
        if self._earlier_comments(statement) or statement in self.skipped_statements:
            return
        above = self.comments.setdefault(statement, [])
        line = f"{PREFIX}{text}"
        if line not in above:
            self._say(node, text)
            above.append(line)

    def is_skipped(self, node: cst.CSTNode) -> bool:
        """True if a person has marked the statement that a node is in as one to leave alone."""
        if not self.skipped_statements or isinstance(node, cst.Module):
            return False
        return self.statement(node) in self.skipped_statements

    @functools.cached_property
    def skipped_statements(self) -> frozenset[cst.CSTNode]:
        """The statements that a person has marked as ones to leave alone."""
        if not any(map(is_skip, comments(self.analysis.module))):
            return frozenset()
        statements = (node for node in walk(self.analysis.module) if is_statement(type(node)))
        return frozenset(filter(is_skipped, statements))

    def list_earlier(self) -> None:
        """Lists in the summary what an earlier run has left by hand and is still there."""
        for statement in self.analysis.facts.commented:
            for prefix, by_hand in ((PREFIX, True), (NOTE, False)):
                for comment in self._earlier_comments(statement, prefix):
                    self._say(statement, comment.removeprefix(prefix), by_hand)

    def without_settled(self, original: cst.CSTNode, updated: Any) -> Any:
        """A statement without the question that an earlier run asked, if it is answered now."""
        asked = [c for c in self._earlier_comments(original) if c.startswith(f"{PREFIX}{QUESTION}")]
        if not asked or not _old_attributes(original) or _old_attributes(updated):
            return updated
        texts = [comment.removeprefix(PREFIX) for comment in asked]
        self.remarks = [s for s in self.remarks if not (s[0] is original and s[1] in texts)]
        lines = [x for x in updated.leading_lines if not (x.comment and x.comment.value in asked)]
        return updated.with_changes(leading_lines=lines)

    def _earlier_comments(self, statement: cst.CSTNode, prefix: str = PREFIX) -> list[str]:
        lines = [*getattr(statement, "leading_lines", ())]
        if statement in self.analysis.module.body[:1]:
            lines += self.analysis.module.header
        texts = [line.comment.value for line in lines if line.comment is not None]
        return [c for c in texts if c.startswith(prefix) and not is_skip(c)]

    def remark(self, node: cst.CSTNode, text: str, about: str = "") -> None:
        """Leaves a comment about what is done already, but may matter when the program runs."""
        statement = self.statement(node)
        earlier = self._earlier_comments(statement, NOTE)
        is_repeated = about and any(comment.startswith(f"{NOTE}{about}") for comment in earlier)
        if is_repeated or statement in self.skipped_statements:
            return
        above = self.comments.setdefault(statement, [])
        line = f"{NOTE}{text}"
        if line not in above and line not in earlier:
            self._say(node, text, by_hand=False)
            above.append(line)

    def note(self, node: cst.CSTNode, text: str) -> None:
        """Lists something in the summary alone."""
        if not self.is_skipped(node):
            self._say(node, text, by_hand=False)

    def _say(self, node: cst.CSTNode, text: str, by_hand: bool = True) -> None:
        if (node, text, by_hand) not in self.remarks:
            self.remarks.append((node, text, by_hand))

    def messages(self, but: Collection[str] = ()) -> set[Message]:
        """Returns the messages for the user, without some texts."""
        return {
            Message(self.line(node), text, by_hand)
            for node, text, by_hand in self.remarks
            if text not in but
        }

    def once(self, make: Callable[["Context"], T]) -> T:
        """Returns the result of a function of the whole file, computed once."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def keep_comments(self, original: cst.CSTNode, updated: cst.CSTNode) -> None:
        """Moves comments that a replaced expression had inside above its statement."""
        lost = comments(original)
        if lost:
            remaining = comments(updated)
            lost = [comment for comment in lost if comment not in remaining]
        self.comments.setdefault(self.statement(original), []).extend(lost)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The innermost statement around a node that comments can stand above."""
        if hasattr(node, "leading_lines") and isinstance(node, cst.BaseStatement):
            return node
        return next(
            a
            for a in self.ancestors(node)
            if hasattr(a, "leading_lines") and isinstance(a, cst.BaseStatement)
        )

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


def _old_attributes(root: cst.CSTNode) -> bool:
    names = (node.attr.value for node in walk(root) if isinstance(node, cst.Attribute))
    return any(name in _OLD for name in names)

"""Comments above a file's statements, and messages in the summary."""

import functools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import libcst as cst

from migration_guide.codemod.reading.marks import NOTE, PREFIX, is_skip, is_skipped
from migration_guide.codemod.reading.tree import comments, is_statement, walk
from migration_guide.codemod.results import Message
from migration_guide.codemod.writing.questions import Questions

# Members that an Optimizer had and a TrainState lacks; `apply_gradient` has a rule of its own.
_OLD = frozenset(
    {"target", "optimizer_def", "param_states", "state_dict", "restore_state", "compute_gradient",
     "compute_gradients", "optimize"}
)  # fmt: skip
QUESTION = "is this an optimizer of flax.optim?"


@dataclass
class Remarks(Questions):
    """The remarks of rules on a file."""

    remarks: list[tuple[cst.CSTNode, str, bool]] = field(default_factory=list, kw_only=True)
    comments: dict[cst.CSTNode, list[str]] = field(default_factory=dict, kw_only=True)

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

    def remark(self, node: cst.CSTNode, text: str, topic: str = "") -> None:
        """Leaves a comment on a change that may matter when the program runs."""
        statement = self.statement(node)
        earlier = self._earlier_comments(statement, NOTE)
        is_repeated = topic and any(comment.startswith(f"{NOTE}{topic}") for comment in earlier)
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

    def messages(self, but: Collection[str] = ()) -> set[Message]:
        """Returns the messages for the user, without some texts."""
        return {
            Message(self.line(node), text, by_hand)
            for node, text, by_hand in self.remarks
            if text not in but
        }

    def list_earlier(self) -> None:
        """Lists the comments of an earlier run that are still there in the summary."""
        for statement in self.analysis.facts.commented:
            for prefix, by_hand in ((PREFIX, True), (NOTE, False)):
                for comment in self._earlier_comments(statement, prefix):
                    self._say(statement, comment.removeprefix(prefix), by_hand)

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

    def without_settled(self, original: cst.CSTNode, updated: Any) -> Any:
        """A statement without the question that an earlier run asked, if it is answered now."""
        earlier = self._earlier_comments(original)
        settled = [c for c in earlier if c.startswith(f"{PREFIX}{QUESTION}")]
        if not settled or not _old_attributes(original) or _old_attributes(updated):
            return updated
        texts = [comment.removeprefix(PREFIX) for comment in settled]
        self.remarks = [s for s in self.remarks if not (s[0] is original and s[1] in texts)]
        lines = [x for x in updated.leading_lines if not (x.comment and x.comment.value in settled)]
        return updated.with_changes(leading_lines=lines)

    def _earlier_comments(self, statement: cst.CSTNode, prefix: str = PREFIX) -> list[str]:
        lines = [*getattr(statement, "leading_lines", ())]
        if statement in self.analysis.module.body[:1]:
            lines += self.analysis.module.header
        texts = [line.comment.value for line in lines if line.comment is not None]
        return [c for c in texts if c.startswith(prefix) and not is_skip(c)]

    def _say(self, node: cst.CSTNode, text: str, by_hand: bool = True) -> None:
        if (node, text, by_hand) not in self.remarks:
            self.remarks.append((node, text, by_hand))

    def keep_comments(self, original: cst.CSTNode, updated: cst.CSTNode) -> None:
        """Moves comments that a replaced expression had inside above its statement."""
        lost = comments(original)
        if lost:
            remaining = comments(updated)
            lost = [comment for comment in lost if comment not in remaining]
        self.comments.setdefault(self.statement(original), []).extend(lost)


def _old_attributes(root: cst.CSTNode) -> bool:
    names = (node.attr.value for node in walk(root) if isinstance(node, cst.Attribute))
    return any(name in _OLD for name in names)

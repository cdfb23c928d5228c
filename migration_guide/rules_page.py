# pyright: strict
"""The page of the codemod's rules: before and after, as each rule's own docstring has them."""

import importlib
import inspect
import re
import textwrap
from dataclasses import dataclass

from migration_guide.codemod import rules
from migration_guide.codemod.registry import RULES

# Of code in two columns, so many characters are seen at once.
COLUMN = 58
_EXAMPLE = re.compile(
    r"^Before:\n\n((?:(?:    [^\n]*)?\n)*)After:\n\n((?:(?:    [^\n]*)?\n)*)(.*)", re.M | re.S
)


@dataclass(frozen=True)
class RuleText:
    """The parts of a rule's docstring."""

    name: str
    summary: str
    before: str
    after: str
    why: str


def rule_text(name: str) -> RuleText:
    """Reads the docstring of a rule."""
    text = inspect.getdoc(importlib.import_module(f"{rules.__name__}.{name}")) or ""
    summary, _, rest = text.partition("\n\n")
    match = _EXAMPLE.search(f"{rest}\n")
    if match is None:
        raise ValueError(f"rule {name!r}: no 'Before:' and 'After:' in its docstring")
    before, after, why = match.groups()
    return RuleText(name, summary, _without_indent(before), _without_indent(after), why.strip())


def _without_indent(lines: str) -> str:
    return textwrap.dedent(lines).strip()


def rules_markdown() -> str:
    """A section for each rule, by name."""
    names = sorted(rule.name for rule in RULES)
    return "\n\n".join(section(rule_text(name)) for name in names)


def section(rule: RuleText) -> str:
    """The section of a rule: both sides of its example, and the reason."""
    halves = [
        f"::::{{container}} {side}\n```python\n{code}\n```\n::::"
        for side, code in (("before", rule.before), ("after", rule.after))
    ]
    longest = max(map(len, f"{rule.before}\n{rule.after}".splitlines()))
    layout = "pair" if longest <= COLUMN else "pair stacked"
    pair = f":::::{{container}} {layout}\n" + "\n".join(halves) + "\n:::::"
    return "\n\n".join([f"## {rule.name}", rule.summary, pair, rule.why])

"""The rules, one a file. A file in this folder that defines one of the handlers below is a rule.

- `rewrite_call(context, original, updated)`: for each call.
- `rewrite_attribute(context, original, updated)`: for each `a.b`.
- `rewrite_reference(context, original, updated)`: for each imported name that is used, `Adam` or
  `optim.Adam`.
- `rewrite_class(context, original, updated)`: for each class statement.
- `rewrite_statement(context, original, updated)`: for each simple statement; may return several.

A handler returns the new node, or None where the rule does not apply. `original` is what the
analysis knows, `updated` what inner rewrites made of it.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

HANDLERS = (
    "rewrite_call",
    "rewrite_attribute",
    "rewrite_reference",
    "rewrite_class",
    "rewrite_statement",
    "rewrite_module",
)


@dataclass(frozen=True)
class Rule:
    """One rule.

    Attributes:
      name: of its file.
      summary: first line of its docstring.
      handlers: handler name -> function.
    """

    name: str
    summary: str
    handlers: dict[str, Callable[..., Any]]


def _collected() -> tuple[Rule, ...]:
    found = []
    for info in pkgutil.iter_modules(__path__):
        if info.name.endswith("_test"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        handlers = {name: getattr(module, name) for name in HANDLERS if hasattr(module, name)}
        if handlers:
            summary = (inspect.getdoc(module) or "").splitlines()[0]
            found.append(Rule(info.name, summary, handlers))
    return tuple(sorted(found, key=lambda rule: rule.name))


RULES: tuple[Rule, ...] = _collected()

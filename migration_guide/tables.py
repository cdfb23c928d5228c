"""Tables of the guide about all optimizers, written from the correspondence."""

import inspect
from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import Any

import numpy as np

from optax_bridge.correspondence import (
    ENTRIES,
    Call,
    Claim,
    Described,
    Entry,
    UnsupportedSetting,
    choose_recipe,
    describe,
)
from optax_bridge.correspondence.recipe import Setting, render, resolve

_NONE = "none"
_WIDTH = 64


def overview_markdown() -> str:
    """A table of all optimizers: the exact equal, public Optax's, its verdict and its proof."""
    return _overview(_entries())


def optimizers_markdown() -> str:
    """A section for each optimizer."""
    return "\n\n".join(map(_section, _entries()))


def _entries() -> list[Entry]:
    return sorted(ENTRIES.values(), key=lambda entry: entry.legacy.__name__.lower())


def _overview(entries: Sequence[Entry]) -> str:
    rows = []
    for entry in entries:
        name = entry.legacy.__name__
        verdicts = dict.fromkeys(variant.claim.verdict.value for variant in entry.optax)
        proved = dict.fromkeys(variant.claim.relation for variant in entry.optax)
        targets = dict.fromkeys(code(variant.recipe.target) for variant in entry.optax)
        cells = [", ".join(targets), " or ".join(verdicts), " or ".join(proved)]
        if entry.parts is not None:
            cells = ["that of its parts", "theirs", "theirs"]
        rows.append(
            (f"[{name}](#{name.lower()})", code(entry.name), *(cell or _NONE for cell in cells))
        )
    return table(("flax.optim", "exact", "optax", "verdict of public Optax", "proved"), rows)


def _section(entry: Entry) -> str:
    parts = [f"## {entry.legacy.__name__}", entry.notes]
    if not entry.takes_groups:
        parts += [_example(*example) for example in _examples(entry)]
    if entry.unsupported:
        parts.append("Without an equal in public Optax:")
        parts.append("\n".join(f"- {code(u.name)}: {u.message}" for u in entry.unsupported))
    rows = [(code(hp.legacy), code(hp.port), default(hp.default)) for hp in entry.hyper_params]
    parts.append(table(("argument", "here", "default"), rows))
    if entry.state:
        rows = [
            (
                code(field.legacy),
                code(field.exact),
                (", ".join(map(code, field.optax)) or _NONE)
                + (" (negated)" if field.optax_sign < 0 else ""),
            )
            for field in entry.state
        ]
        parts.append(table(("state", "here", "in public Optax"), rows))
    parts.append(f"*Sources: {'; '.join(entry.sources)}.*")
    return "\n\n".join(parts)


def _examples(entry: Entry) -> Iterable[tuple[Any, Call | None, str]]:
    """For each claim of a recipe of public Optax, the suite's first case that it is about."""
    seen: set[Any] = set()
    for case in entry.cases:
        described = describe(entry.definition(case, case.learning_rate))
        try:
            choice = choose_recipe(described, "optax")
            recipe, claim = choice.call, choice.claim
            key, verdict = claim, _verdict(claim) + (f"; {claim.reason}" if claim.reason else "")
        except UnsupportedSetting as error:
            recipe, key, verdict = None, str(error), _NONE
        if key not in seen:
            seen.add(key)
            yield described, recipe, verdict


def _example(described: Any, optax_call: Call | None, verdict: str) -> str:
    exact = choose_recipe(described, "exact").call
    lines = ["# was", _source(_legacy_call(described)), "", "# exact", _source(exact)]
    if optax_call is not None:
        lines += ["", *_comment(f"optax: {verdict}"), _source(optax_call)]
    return "\n".join(["```python", *lines, "```"])


def _comment(text: str) -> list[str]:
    return wrap(text, _WIDTH, initial_indent="# ", subsequent_indent="#   ")


def _source(node: Any, indent: int = 0) -> str:
    """A recipe as source, broken after each argument where a line would be too long for a page."""
    line = render(node)
    if len(line) + indent <= _WIDTH or not isinstance(node, Call):
        return line
    inner = indent + 4
    arguments = [_source(arg, inner) for arg in node.args]
    arguments += [f"{name}={_source(value, inner)}" for name, value in node.kwargs.items()]
    body = "".join(f"{' ' * inner}{argument},\n" for argument in arguments)
    return f"{node.target}(\n{body}{' ' * indent})"


def _legacy_call(described: Any) -> Call:
    """The legacy constructor call, without arguments that have their default."""
    settings = {
        hp.legacy: _legacy_call(value) if isinstance(value, Described) else value
        for hp in described.entry.hyper_params
        if (value := described.settings[hp.legacy]) is not hp.default and value != hp.default
    }
    return Call(f"optim.{described.entry.legacy.__name__}", (), settings)


def _verdict(claim: Claim) -> str:
    bound = "" if claim.ulp is None else f", at most {claim.ulp:g} ULP in 100 steps"
    return claim.verdict.value + bound


def differences_markdown() -> str:
    """A table: what `flax.optim` and Optax take where the program says nothing."""
    rows = [row for entry in _entries() for row in dict.fromkeys(_differing_defaults(entry))]
    return table(("flax.optim", "argument", "default", "in Optax", "argument", "default"), rows)


def _differing_defaults(entry: Entry) -> Iterable[tuple[str, ...]]:
    for variant in entry.optax:
        for alias in _aliases(variant.recipe):
            parameters = inspect.signature(resolve(alias.target)).parameters
            for name, value in alias.kwargs.items():
                is_ours = isinstance(value, Setting)
                ours = entry.defaults()[value.name] if is_ours else value
                theirs = parameters[name].default
                if _differ(ours, theirs):
                    yield (
                        entry.legacy.__name__,
                        code(value.name) if is_ours else "*none, it is always*",
                        default(ours),
                        code(alias.target),
                        code(name),
                        default(theirs),
                    )


def _aliases(recipe: Any) -> Iterable[Call]:
    """The calls within a recipe that name an optimizer of Optax, not a part of one."""
    if isinstance(recipe, Call):
        is_part = ".scale_by" in recipe.target or recipe.target.startswith("optax.add")
        if recipe.target.startswith("optax.") and recipe.kwargs and not is_part:
            yield recipe
        for value in (*recipe.args, *recipe.kwargs.values()):
            yield from _aliases(value)


def _differ(ours: Any, theirs: Any) -> bool:
    """True if two defaults differ; no rate in the constructor is a rate per call."""
    empty = (None, inspect.Parameter.empty)
    if ours in empty and theirs in empty:
        return False
    return bool(ours != theirs)


def default(value: Any) -> str:
    """A default of an argument, as a cell of a table shows it."""
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(getattr(value, "dtype", None), np.dtype):
        return code(np.dtype(value.dtype).name)
    return code(repr(value))


def code(text: str) -> str:
    """Text as code."""
    return f"`{text}`"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

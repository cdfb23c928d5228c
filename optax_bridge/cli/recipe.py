"""`optax-bridge recipe`: the Optax source for a legacy constructor call."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:  # JAX, which no help needs
    from rich.console import Console

    from optax_bridge.correspondence import Choice, Described, Entry
    from optax_bridge.correspondence.recipe import Node


class Dtype(enum.StrEnum):
    """The dtypes that parameters of old programs have."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


FOUND, NO_EQUAL, MISUSE = 0, 1, 2
_PER_CALL = (
    "every call passes the rate, which Optax's own optimizers do not accept; with a number or a "
    "schedule in its place"
)


def recipe(
    expression: Annotated[
        str,
        typer.Argument(
            metavar="EXPRESSION",
            help="A constructor call of flax.optim or torch.optim; it is parsed, never evaluated.",
        ),
    ],
    recipe: Annotated[
        Literal["auto", "exact", "optax"] | None,
        typer.Option(
            help="Print only one recipe: `exact`, this project's own; `optax`, public Optax even "
            "if it differs; `auto`, the one that `migrate` writes: public Optax if it is the same "
            "except for rounding, otherwise the exact one. By default `exact` and `optax`."
        ),
    ] = None,
    dtype: Annotated[
        list[Dtype] | None,
        typer.Option(help="Dtype of the parameters; may be repeated. By default float32."),
    ] = None,
) -> None:
    """Print the Optax source for an optimizer of flax.optim or PyTorch, with its verdict.

    Nothing is run: the verdicts are those of `check` and `prove`. `optax-bridge compare --help`
    says which command answers which question, and explains the verdicts.

    | exit code | means |
    |---|---|
    | 0 | printed |
    | 1 | public Optax has no equivalent for one of the settings |
    | 2 | misuse: the expression is not such a call |
    | 130 | interrupted |

    Examples:
    - `optax-bridge recipe "Adam(learning_rate=1e-3, weight_decay=0.01)"`

    - `optax-bridge recipe "Adam(1e-3)" --recipe auto --dtype bfloat16`

    - `optax-bridge recipe "optim.WeightNorm(Momentum(0.1, nesterov=True))"`

    - `optax-bridge recipe "torch.optim.AdamW(lr=1e-3, weight_decay=0.05)"`
    """
    raise typer.Exit(print_recipe(expression, recipe, dtype or [Dtype.float32]))


def print_recipe(
    expression: str,
    kind: Literal["auto", "exact", "optax"] | None = None,
    dtypes: Sequence[str] = ("float32",),
    console: Console | None = None,
) -> int:
    """Prints recipes with their verdicts, and the entry's notes; returns the exit code."""
    from optax_bridge.cli.terminal import Terminal
    from optax_bridge.correspondence import choose_recipe
    from optax_bridge.correspondence.expression import ExpressionError, parse

    console = console or Terminal()
    try:
        described = parse(expression)
    except ExpressionError as error:
        _print_prose(Terminal(stderr=True), str(error))
        return MISUSE
    code = FOUND
    if kind in (None, "exact"):
        _print_choice(console, "exact", described, choose_recipe(described, "exact"))
    if kind == "auto":
        _print_choice(console, kind, described, choose_recipe(described, kind, dtypes))
    if kind in (None, "optax"):
        code = _print_public(console, described, dtypes)
    for remark in described.remarks():
        _print_prose(console, remark)
    for entry in _entries(described):
        _print_prose(console, f"\n{entry.legacy.__name__}: {entry.notes}")
        _print_prose(console, f"Sources: {'; '.join(entry.sources)}", style="dim")
    return code


def _print_public(console: Console, described: Described, dtypes: Sequence[str]) -> int:
    """Prints the recipe of public Optax, with a name for a rate that every call gave."""
    from optax_bridge.correspondence import UnsupportedSetting, choose_recipe

    with_rate, prefix = _with_named_rate(described), ""
    try:
        try:
            choice = choose_recipe(described, "optax")
        except UnsupportedSetting:
            if with_rate == described:
                raise
            choice, prefix = choose_recipe(with_rate, "optax"), _PER_CALL
    except UnsupportedSetting as error:
        _print_prose(console, f"none. {error}", "optax")
        return NO_EQUAL
    lacking = [name for name in dtypes if choice.dtypes and name not in choice.dtypes]
    elsewhere = f"not the same in {', '.join(lacking)}; elsewhere" if lacking else ""
    prefix = "; ".join(filter(None, [prefix, elsewhere]))
    _print_choice(console, "optax", described, choice, prefix)
    return FOUND


def _print_choice(
    console: Console, heading: str, described: Described, choice: Choice, prefix: str = ""
) -> None:
    """Prints a recipe as source, with its verdict and the places of the state's fields."""
    from optax_bridge.correspondence.recipe import imports, render

    claim = described.entry.exactness if choice.kind == "exact" else choice.claim
    bound = (
        ""
        if claim.ulp is None
        else f", at most {claim.ulp:g} ULP of the tensor's scale in 100 steps"
    )
    reason = f" ({claim.reason})" if claim.reason else ""
    prefix = f"{prefix}: " if prefix else ""
    _print_prose(console, f"{prefix}{claim.verdict.value}{bound}{reason}", heading)
    _print_prose(console, f"{_scope(choice)}\n{_proof(described, choice)}")
    source = [f"import {name}" for name in imports(choice.call)]
    source += ["", f"tx = {_laid_out(choice.call, console.width)}"]
    _print_source(console, source)
    if names := list(dict.fromkeys(_fields(described, choice))):
        access = "optax.tree.get(opt_state, name) and optax.tree.set(opt_state, name=value)"
        _print_prose(console, f"{', '.join(names)}: {access}\n", "state")
    for entry in _entries(described):
        if choice.kind == "optax" and entry.parts and f"{entry.port}(" in render(choice.call):
            _print_prose(
                console,
                f"{entry.port} stays: public Optax has no equivalent of {entry.legacy.__name__}. "
                "Only the optimizers inside it are public.",
            )


def _proof(described: Described, choice: Choice) -> str:
    """The relation that the command proves of this claim, for which inputs and dtypes."""
    from optax_bridge.correspondence import ENTRIES, origin_of
    from optax_bridge.correspondence.claim import PROVED_FOR

    origin = origin_of(described.entry)
    only = "" if origin is ENTRIES else f" --only {origin.name}"
    command = f"optax-bridge prove{only}"
    if choice.claim.relation == "different":
        return f"`{command}` shows an input on which the two differ"
    relation = choice.claim.relation
    if relation != "identical":
        relation += ", which says nothing about rounding,"
    return f"`{command}` proves the two {relation} for {PROVED_FOR} in {', '.join(origin.proved)}"


def _scope(choice: Choice) -> str:
    """The dtypes in which the recipe's claim holds, and why not in others."""
    holds = [name for name in Dtype if name in choice.dtypes]
    text = f"holds for parameters in {', '.join(holds)}" if holds else "holds in no dtype"
    return f"{text}. {choice.reason}" if choice.reason else text


def _fields(described: Described, choice: Choice) -> Iterator[str]:
    """The fields of an optimizer and of those within it, by the recipe of each."""
    from optax_bridge.correspondence.table import with_inner

    is_public = choice.kind == "optax" and bool(described.entry.optax)
    for field in described.entry.state:
        places = field.optax if is_public else [field.exact]
        negated = " negated" if is_public and field.optax_sign < 0 else ""
        if names := " or ".join(dict.fromkeys(place.rpartition(".")[2] for place in places)):
            yield f"{field.legacy} is {names}{negated}"
    within: list[Described] = []
    with_inner(described.settings, within.append)
    for inner, part in zip(within, choice.parts, strict=True):
        yield from _fields(inner, part)


def _print_source(console: Console, lines: Sequence[str]) -> None:
    """Prints source without line breaks, so that it can be pasted; the terminal wraps it."""
    from rich.syntax import Syntax

    syntax = Syntax("\n".join(lines), "python", background_color="default", word_wrap=False)
    console.print(syntax, soft_wrap=True)
    console.print()


def _print_prose(console: Console, text: str, heading: str = "", style: str = "") -> None:
    """Prints prose, which wraps at words."""
    from rich.text import Text

    start = [(heading, "bold"), ": "] if heading else []
    console.print(Text.assemble(*start, text, style=style))


def _laid_out(node: Node, width: int, indent: int = 0, before: int = len("tx = ")) -> str:
    """A recipe as source, a call that is too long for a line with one argument on each."""
    from optax_bridge.correspondence.recipe import Call, render

    text = render(node)
    if not isinstance(node, Call | tuple) or indent + before + len(text) < width:
        return text
    inner = indent + 4
    if isinstance(node, Call):
        opening = f"{node.target}("
        parts = [_laid_out(arg, width, inner, 0) for arg in node.args]
        parts += [
            f"{name}={_laid_out(value, width, inner, len(name) + 1)}"
            for name, value in node.kwargs.items()
        ]
    else:
        opening = "("
        parts = [_laid_out(item, width, inner, 0) for item in node]
    lines = "".join(f"{' ' * inner}{part},\n" for part in parts)
    return f"{opening}\n{lines}{' ' * indent})" if parts else text


def _with_named_rate(described: Described) -> Described:
    """An optimizer with a variable for each learning rate that every call gave, within it too."""
    from optax_bridge.correspondence.recipe import Source
    from optax_bridge.correspondence.table import with_inner

    settings = with_inner(described.settings, _with_named_rate)
    if settings.get("learning_rate", 0) is None:
        settings["learning_rate"] = Source("learning_rate")
    return dataclasses.replace(described, settings=settings)


def _entries(described: Described) -> list[Entry]:
    """The entries that an optimizer is made of, outermost first, each once."""

    def visit(value: Node) -> Iterator[Entry]:
        if isinstance(value, type(described)):
            yield value.entry
            for item in value.settings.values():
                yield from visit(item)
        elif isinstance(value, tuple):
            for item in value:
                yield from visit(item)

    return list({entry.name: entry for entry in visit(described)}.values())

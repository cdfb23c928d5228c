"""`optax-bridge recipe`: the Optax source for a legacy constructor call."""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from optax_bridge._terminal import Terminal
from optax_bridge.correspondence import Claim, Described, UnsupportedSetting, recipe_of
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import Call, Source, imports, render

FOUND, NO_EQUAL, MISUSE = 0, 1, 2
_PER_CALL = (
    "every call gives the rate, which Optax's own optimizers do not take; with a number, or a "
    "schedule of the step, in its place"
)


def print_recipe(expression: str, console: Console | None = None) -> int:
    """Prints both recipes, what each is worth, and the entry's notes.

    Args:
      expression: a legacy constructor call as text.
      console: where to print; standard output if None.

    Returns:
      0, 1 if a setting has no equal in public Optax, or 2 if the expression is no such call.
    """
    console = console or Terminal()
    try:
        described = _changed(parse(expression), _selector)
    except ExpressionError as error:
        _say(Terminal(stderr=True), str(error))
        return MISUSE
    exact, claim = recipe_of(described)
    _print(console, "exact", exact, claim)
    _say_fields(console, {f.legacy: (f.exact,) for e in _entries(described) for f in e.state})
    code = _print_stock(console, described)
    for entry in _entries(described):
        _say(console, f"\n{entry.legacy.__name__}: {entry.notes}")
        _say(console, f"Sources: {'; '.join(entry.sources)}", style="dim")
    return code


def _print_stock(console: Console, described: Described) -> int:
    why = ""
    try:
        recipe, claim = recipe_of(described, exact=False)
    except UnsupportedSetting as error:
        with_rate = _changed(described, _rate)
        why = _PER_CALL
        try:
            if with_rate == described:
                raise
            recipe, claim = recipe_of(with_rate, exact=False)
        except UnsupportedSetting:
            _say(console, f"none. {error}", "stock")
            return NO_EQUAL
    _print(console, "stock", recipe, claim, why)
    fields = [f for e in _entries(described) for f in e.state]
    negated = {f.legacy for f in fields if f.stock_sign < 0}
    _say_fields(console, {f.legacy: f.stock for f in fields}, negated)
    stays = [e for e in _entries(described) if f"{e.port}(" in render(recipe)]
    for entry in stays:
        _say(
            console,
            f"{entry.port} stays in it: public Optax has no equal of {entry.legacy.__name__}. What "
            "is public are the optimizers within.",
        )
    return FOUND


def _print(console: Console, kind: str, recipe: Call, claim: Claim, why: str = "") -> None:
    bound = (
        ""
        if claim.ulp is None
        else f", at most {claim.ulp:g} ULP of the tensor's scale in 100 steps"
    )
    if claim.step is not None:
        bound += f"; by analysis at most {claim.step}"
    reason = f" ({claim.reason})" if claim.reason else ""
    _say(console, f"{why + ': ' if why else ''}{claim.verdict.value}{bound}{reason}", kind)
    _say(console, f"proved for all inputs: {claim.proved}")
    code = f"tx = {_laid_out(recipe, console.width)}"
    modules = [*imports(recipe), *(["fnmatch"] if "fnmatch." in code else [])]
    source = "\n".join([*(f"import {name}" for name in sorted(modules)), "", code])
    # Never broken, so that it can be pasted: the terminal wraps what is longer than its lines.
    syntax = Syntax(source, "python", background_color="default", word_wrap=False)
    console.print(syntax, soft_wrap=True)
    console.print()


def _say_fields(
    console: Console, fields: Mapping[str, Sequence[str]], negated: Collection[str] = ()
) -> None:
    """What the fields of a legacy parameter's state are called; nothing where there are none."""
    said = []
    for legacy, places in fields.items():
        names = dict.fromkeys(place.rpartition(".")[2] for place in places)
        if names:
            said.append(f"{legacy} is {' or '.join(names)}{' negated' * (legacy in negated)}")
    if said:
        where = "optax.tree.get(opt_state, name) and optax.tree.set(opt_state, name=value)"
        _say(console, f"{', '.join(said)}: {where}\n", "state")


def _say(console: Console, text: str, heading: str = "", style: str = "") -> None:
    """Prints prose, which wraps at words."""
    start = [(heading, "bold"), ": "] if heading else []
    console.print(Text.assemble(*start, text, style=style))


def _laid_out(node: Any, width: int, indent: int = 0, before: int = len("tx = ")) -> str:
    """A recipe as source, a call that is too long for a line with one argument on each."""
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


def _changed(described: Described, change: Callable[[str, Any], Any]) -> Described:
    """An optimizer with other settings, those of the optimizers in it included."""

    def new(name: str, value: Any) -> Any:
        if isinstance(value, Described):
            return _changed(value, change)
        if isinstance(value, tuple):
            return tuple(new(name, item) for item in value)
        return change(name, value)

    settings = {name: new(name, value) for name, value in described.settings.items()}
    return dataclasses.replace(described, settings=settings)


def _rate(name: str, value: Any) -> Any:
    return Source("learning_rate") if name == "learning_rate" and value is None else value


def _selector(name: str, value: Any) -> Any:
    """A pattern of paths, which stands for a traversal here, as a selector."""
    if name != "traversals_and_optimizers" or not isinstance(value, str):
        return value
    return Source(f"optax_bridge.path_mask(lambda path, _: fnmatch.fnmatchcase(path, {value!r}))")


def _entries(described: Any) -> list[Any]:
    """The entries that an optimizer is made of, outermost first, each once."""
    entries: dict[str, Any] = {}

    def visit(value: Any) -> None:
        if isinstance(value, Described):
            entries.setdefault(value.entry.name, value.entry)
            for item in value.settings.values():
                visit(item)
        elif isinstance(value, tuple):
            for item in value:
                visit(item)

    visit(described)
    return list(entries.values())

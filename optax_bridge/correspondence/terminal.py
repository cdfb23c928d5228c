"""`optax-bridge recipe`: the Optax source for a legacy constructor call."""

from typing import Any

from rich.console import Console
from rich.syntax import Syntax

from optax_bridge.correspondence import Claim, Described, UnsupportedSetting, recipe_of
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import Call, imports, render

FOUND, NO_EQUAL, MISUSE = 0, 1, 2


def print_recipe(expression: str, console: Console | None = None) -> int:
    """Prints both recipes, what each is worth, and the entry's notes.

    Args:
      expression: a legacy constructor call as text.
      console: where to print; standard output if None.

    Returns:
      0, 1 if a setting has no equal in public Optax, or 2 if the expression is no such call.
    """
    console = console or Console(soft_wrap=True)
    try:
        described = parse(expression)
    except ExpressionError as error:
        Console(stderr=True, soft_wrap=True).print(str(error), markup=False)
        return MISUSE
    exact, claim = recipe_of(described)
    _print(console, "exact", exact, claim)
    try:
        stock, claim = recipe_of(described, exact=False)
        _print(console, "stock", stock, claim)
        code = FOUND
    except UnsupportedSetting as error:
        console.print(f"[bold]stock[/]: none. {error}", highlight=False)
        code = NO_EQUAL
    for entry in _entries(described):
        console.print(f"\n{entry.legacy.__name__}: {entry.notes}", markup=False, highlight=False)
        console.print(f"Sources: {'; '.join(entry.sources)}", style="dim", highlight=False)
    return code


def _print(console: Console, kind: str, recipe: Call, claim: Claim) -> None:
    bound = (
        ""
        if claim.ulp is None
        else f", at most {claim.ulp:g} ULP of the tensor's scale in 100 steps"
    )
    why = f" ({claim.reason})" if claim.reason else ""
    console.print(f"[bold]{kind}[/]: {claim.verdict.value}{bound}{why}", highlight=False)
    console.print(f"proved for all inputs: {claim.proved}", highlight=False)
    modules = [f"import {name}" for name in imports(recipe)]
    source = "\n".join([*modules, "", f"tx = {render(recipe)}"])
    console.print(Syntax(source, "python", background_color="default", word_wrap=False))
    console.print()


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

"""What `recipe` prints of every optimizer, whole, and the values that its settings can take."""

import io
from typing import Any

from rich.console import Console

from optax_bridge.cli.recipe import print_recipe
from optax_bridge.correspondence import ENTRIES
from optax_bridge.correspondence.entry import Entry
from optax_bridge.correspondence.recipe import render
from optax_bridge.correspondence.values import expectation

# Beside the settings of the first case: those with another recipe, and that have none.
OTHERS = {
    "Adafactor": ("epsilon2=0.5", "beta1=0.9, dtype_momentum=jnp.bfloat16"),
    "LARS": ("weight_decay=0.1, nesterov=True",),
    "RMSProp": ("centered=True",),
    **dict.fromkeys(("AdaBelief", "Adadelta", "Adam", "Momentum"), ("weight_decay=0.1",)),
}
HOLDING = {
    "MultiOptimizer": "('*/kernel', Adam(0.1)), ('*/bias', Momentum(0.1))",
    "WeightNorm": "LARS(), wn_decay=0.1",
}


def page(expression: str) -> str:
    """All that the command prints."""
    console = Console(width=100, record=True, file=io.StringIO())
    print_recipe(expression, console=console)
    return "\n".join(line.rstrip() for line in console.export_text().splitlines())


def settings_of(entry: Entry) -> str:
    """A line for each setting, its names, default and values; the cases of the suite."""
    lines = [
        f"{hp.legacy}: {hp.port}={getattr(hp.default, '__name__', hp.default)}; "
        f"{expectation(hp.default, hp.within, 1j)}"
        for hp in entry.hyper_params
        if not hp.variadic
    ]
    lines += [f"case: {render(entry.call(case, case.learning_rate))}" for case in entry.cases]
    return "\n".join([*lines, *(f"left out, {k}: {v}" for k, v in entry.excluded.items())])


def test_every_optimizer_has_the_recorded_page(recorded: Any):
    pages = {}
    for entry in ENTRIES.values():
        name = entry.legacy.__name__
        pages[f"settings of {name}"] = settings_of(entry)
        rate = HOLDING.get(name, f"{entry.rate}=0.1")
        for settings in (rate, *(f"{rate}, {more}" for more in OTHERS.get(name, ()))):
            pages[f"{name}({settings})"] = page(f"{name}({settings})")
    recorded("entries.txt", pages)

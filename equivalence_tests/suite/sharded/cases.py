"""The transformer on eight devices against one: which layouts give the same bits, and if not, why.

Where no sum is split over devices, every bit must be the same. Whether one is, the compiled program
says: it then has an all-reduce that adds floating-point numbers.
"""

from collections.abc import Sequence

import jax
from rich import box
from rich.markup import escape
from rich.table import Table

from equivalence_tests.compare.comparison import compare
from equivalence_tests.suite.case import Result, record_run
from equivalence_tests.suite.sharded import training, two_processes
from equivalence_tests.suite.sharded.partitioned import can_be_pinned
from equivalence_tests.suite.sharded.training import (
    DEVICES,
    GIVEN,
    LAYOUTS,
    OPTIMIZERS,
    ShardedCase,
    reference,
    vanishing,
)
from optax_bridge.correspondence.claim import Claim, identical, rounding
from optax_bridge.correspondence.recipe import render

# Sums of up to 512 terms (64 images of 8 rows) in another order differ by about the square root of
# that, 23 ULP, of their terms' size in each step, and the steps do not add up: seen at most 14.
ROUNDING_ULP = 64.0


def cases(full: bool) -> list[ShardedCase]:
    """Every layout in a closed loop, two on given gradients; if all, two in two processes."""
    selected = []
    for name in OPTIMIZERS:
        selected += [ShardedCase(name, layout) for layout in LAYOUTS]
        selected += [ShardedCase(name, layout, GIVEN) for layout in ("FSDP", "data and tensor")]
    if full:
        selected.append(ShardedCase("adam", "optimizer state", processes=2))  # splits no sum
        selected.append(ShardedCase("adafactor", "FSDP", processes=2))
    return selected


def can_run() -> bool:
    """True if there are enough devices on this CPU, and XLA can be pinned."""
    return len(jax.devices("cpu")) >= DEVICES and can_be_pinned()


def run(case: ShardedCase) -> Result:
    """Runs a case on the mesh and on one device, and holds it to what its programs allow."""
    result = Result(case, layout_text(case), source=render(OPTIMIZERS[case.entry]))
    with record_run(result):
        alone, _ = reference(case.entry, case.drive)
        seen, split = (training if case.processes == 1 else two_processes).run(case)
        left_out = vanishing(case.entry) if split else ()
        both = ({k: v for k, v in one.items() if k not in left_out} for one in (alone, seen))
        result.comparison = compare(*both)
        if "loss" in alone and case.drive != GIVEN:
            result.losses = alone["loss"].tolist(), seen["loss"].tolist()
        result.claim, result.note = claim(split), summary(split)
        result.extra = {
            "devices": DEVICES,
            "processes": case.processes,
            "split_sums": split,
            "left_out": list(left_out),
        }
    return result


def claim(split: Sequence[str]) -> Claim:
    """Returns the promise of a program that splits these sums over devices."""
    if not split:
        return identical("no sum is split over devices")
    return rounding(ROUNDING_ULP, f"split over devices: {', '.join(split)}")


def summary(split: Sequence[str]) -> str:
    """The split sums in few words: how many in which part of the step."""
    if not split:
        return "no sum is split"
    parts = [name.split(" ")[0] for name in split]
    counts = ", ".join(f"{parts.count(part)} {part}" for part in dict.fromkeys(parts))
    return f"split sums: {counts}"


def table(results: Sequence[Result]) -> Table:
    """One row for each case among the results: the outcome, and which sums are split."""
    shown = Table(
        title=f"The transformer on {DEVICES} devices against one",
        title_justify="left",
        caption="Identical where no sum is split over devices. Pinned, as XLA chooses by shapes: "
        "no algebraic simplifier, no YNN library, the step a program of its own.",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for name in ("optimizer", "layout", "outcome", "as claimed", "why"):
        shown.add_column(name, no_wrap=name != "why")
    previous = ""
    for result in results:
        case = result.case
        if not isinstance(case, ShardedCase):
            continue
        comparison, name = result.comparison, case.entry
        if comparison is None or result.verdict is None:
            outcome = "error"
        else:
            far = "" if comparison.identical else f", {comparison.ulp:.3g} ULP"
            outcome = result.verdict.value + far
        shown.add_row(
            name if name != previous else "",
            layout_text(case),
            outcome,
            "[green]yes[/]" if result.held else "[bold red]NO[/]",
            escape(result.note),
        )
        previous = name
    return shown


def layout_text(case: ShardedCase) -> str:
    """Returns the layout of a case, for a table's cell."""
    processes = f", {case.processes} processes" if case.processes > 1 else ""
    return case.layout + processes + (", given gradients" if case.drive == GIVEN else "")

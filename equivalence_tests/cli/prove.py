"""`optax-bridge prove`: proves the claims of the correspondence for all inputs."""

import time
from typing import Annotated

import typer

from equivalence_tests.cli.options import EXIT_CODES, SEE_WHICH_COMMAND, Json
from optax_bridge.cli.app import STYLE

app = typer.Typer(**STYLE)

_ABOUT = f"""Prove that old and new optimizers are the same, or show an input on which they differ.

Both programs are traced and compared symbolically, so a proof holds for all inputs, under the
assumptions that it lists; *not decided* says where the proof stopped. {SEE_WHICH_COMMAND}
{EXIT_CODES}
Examples:
- `optax-bridge prove`

- `optax-bridge prove --only lamb --only exact --json proofs.json`
"""


@app.command(help=_ABOUT)
def prove(
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="An optimizer, a recipe (`exact`; `optax`, public Optax alone) or a dtype, e.g. "
            "`adam` or `bfloat16`; `torch` for all PyTorch optimizers, `torch.adamw` for one; may "
            "be repeated."
        ),
    ] = None,
    json: Json = None,
) -> None:
    """See `_ABOUT`."""
    from rich.progress import Progress  # and JAX, which no help needs

    from equivalence_tests.proof.claims import prove_all
    from equivalence_tests.proof.table import tasks
    from equivalence_tests.report import proofs
    from equivalence_tests.report.outputs import DIFFERENT, MISUSE, SAME, Outputs
    from equivalence_tests.report.table import wide_console
    from equivalence_tests.sides.programs import silence_deprecations
    from optax_bridge.cli.terminal import plain_terminal

    silence_deprecations()
    problems = plain_terminal(stderr=True)
    try:
        asked = tasks(only or ())
        if not asked:
            raise ValueError(f"{', '.join(only or ())}: no proof matches all of these")
        Outputs(json).check()
    except ValueError as error:
        text = str(error)
        problems.print(text if text.startswith("--") else f"--only: {text}", markup=False)
        raise typer.Exit(MISUSE) from None
    started, rows = time.perf_counter(), []
    with Progress(console=problems, transient=True) as progress:
        bar = progress.add_task("", total=len(asked))
        for row in prove_all(asked, details=json is not None):
            rows.append(row)
            progress.update(bar, advance=1, description=f"{len(rows)} of {len(asked)}: {row.task}")
    rows.sort(key=lambda row: asked.index(row.task))
    proofs.print_rows(wide_console(), rows, time.perf_counter() - started)
    code = SAME if all(row.held for row in rows) else DIFFERENT
    raise typer.Exit(code if Outputs(json).write(proofs.to_json(rows)) else MISUSE)

"""`optax-bridge check-resume`: checks that the migrated optimizer continues an old checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from equivalence_tests.cli.options import (
    EXIT_CODES,
    SEE_WHICH_COMMAND,
    Gradients,
    Json,
    Junit,
    ReportFolder,
    WithProgramArguments,
    program_arguments,
)
from optax_bridge.cli.app import STYLE
from optax_bridge.cli.options import ShowsTraceback

app = typer.Typer(**STYLE)
_GROUP = "check-resume"  # in JUnit's XML

_ABOUT = f"""Restore an old checkpoint in the old and the migrated program, and take steps in both.

The two restored states are compared leaf by leaf; then both optimizers take steps on the same
gradients. The programs' models, data and random numbers are not run: dropout may draw other
numbers, for example, and the losses then differ. {SEE_WHICH_COMMAND}
{EXIT_CODES}
Examples:
- `optax-bridge check-resume run/checkpoint_100 --program new.py:make --old old.py:make`

- `optax-bridge check-resume run --program new.py:make --optimizer "Adam(learning_rate=1e-3)"`

- `optax-bridge check-resume run --program new.py:make --old old.py:make -- --workdir=/tmp/run`
"""


Checkpoint = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT", help="A checkpoint of the old program, or the folder that holds them."
    ),
]
Program = Annotated[
    str,
    typer.Option(
        help="The migrated program's function that makes the state to restore into: "
        "`new.py:make_state`."
    ),
]
Old = Annotated[
    str | None, typer.Option(help="The old program's function for this: `old.py:make_state`.")
]
Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        help='In place of --old: its optimizer, `"Adam(learning_rate=1e-3)"`; with several '
        'optimizers, repeat the option for each, `"policy=Adam(1e-3)"`.'
    ),
]
Rate = Annotated[
    float | None, typer.Option(help="The learning rate to pass to each step, if the program does.")
]


@app.command("check-resume", help=_ABOUT, cls=WithProgramArguments)
def check_resume(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    program: Program,
    old: Old = None,
    optimizer: Optimizers = None,
    learning_rate: Rate = None,
    gradients: Gradients = "all",
    steps: Annotated[int, typer.Option(help="Number of steps to take on each side.")] = 48,
    json: Json = None,
    junit: Junit = None,
    report: ReportFolder = None,
    shows_traceback: ShowsTraceback = False,
) -> None:
    """See `_ABOUT`."""
    from legacy_optim.logs import without_note_on_tensorflow

    without_note_on_tensorflow()
    import jax  # and Orbax, which no help needs

    from equivalence_tests.environment import environment
    from equivalence_tests.report.item import Difference, of_message, of_report
    from equivalence_tests.report.outputs import DIFFERENT, MISUSE, SAME, Outputs
    from equivalence_tests.resume.resumed import resume
    from equivalence_tests.sides.programs import check_arguments, silence_deprecations
    from optax_bridge.cli.programs import load_object, programs_given
    from optax_bridge.correspondence import Verdict

    silence_deprecations()
    outputs = Outputs(json, junit, report, shows_traceback=shows_traceback)
    try:
        outputs.check()
        if not checkpoint.exists():
            raise ValueError(f"{checkpoint}: there is no such file or folder. Check the path")
        with programs_given(program_arguments(ctx)):
            stream = load_object(gradients) if ":" in gradients else gradients
            try:
                resumed = resume(
                    checkpoint, program, old=old, optimizers=optimizer or (), steps=steps,
                    gradients=stream, learning_rate=learning_rate,
                )  # fmt: skip
            finally:  # a misspelt flag may be what went wrong
                check_arguments()
    except ValueError as error:
        advice = ""
        if learning_rate is None and "no learning rate" in str(error):
            advice = ". Here --learning-rate RATE gives it to each step of both sides"
        raise typer.Exit(outputs.write_error(str(checkpoint), error, _GROUP, advice)) from None
    print(resumed)
    print(resumed.closing)
    items = [
        of_report(path or str(checkpoint), one, group=_GROUP)
        for path, one in resumed.reports.items()
    ]
    if differences := resumed.other_differences:
        items.append(of_message(f"{checkpoint}, as restored", Difference(differences), _GROUP))
    title = items[0].id if len(items) == 1 else "Equivalence"
    about = environment(jax.devices()[0])
    code = DIFFERENT if resumed.verdict is Verdict.DIFFERENT else SAME
    done = outputs.write(resumed.as_dict(), items, title=title, about=about)
    raise typer.Exit(code if done else MISUSE)

"""`optax-bridge replay`: finds where a training run diverges from a recorded one."""

from pathlib import Path
from typing import Annotated

import typer

from equivalence_tests.cli.options import (
    EXIT_CODES,
    Json,
    WithProgramArguments,
    program_arguments,
)
from optax_bridge.cli.app import STYLE
from optax_bridge.cli.options import ShowsTraceback

app = typer.Typer(**STYLE)

_ABOUT = f"""Replay a recorded training run and find where today's program diverges from it.

`optax-bridge recorder` prints the recorder. Stages are checked in the order of a training step:
batches, loss and gradients, learning rate, optimizer. The first divergence is reported with its
stage, step and leaf, and with settings that would explain it. Given a second recording in place of
--optimizer, the command compares the two.
{EXIT_CODES}
The exit code is also 1 if a difference is not decided, or a requested stage cannot be judged.

Examples:
- `optax-bridge replay run.rec --optimizer new.py:make_tx`

- `optax-bridge replay run.rec --optimizer "optax.adamw(1e-3)" --names names.toml`

- `optax-bridge replay run.rec --loss new.py:loss --batches new.py:batches`

- `optax-bridge replay cpu.rec gpu.rec`

- `optax-bridge replay run.rec --pack run.npz`
"""


@app.command(help=_ABOUT, cls=WithProgramArguments)
def replay(
    ctx: typer.Context,
    recording: Annotated[Path, typer.Argument(help="A folder or a packed file.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Another recording of the same run.")
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            help="`module:name` or `file.py:name` of an optimizer, or of a function that makes it "
            "and may be tried with other arguments; or a constructor call, `optax.adamw(1e-3)`."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(help="`file.py:name` of a function of (params, batch, model_state, rng)."),
    ] = None,
    batches: Annotated[
        str | None, typer.Option(help="`file.py:name` of an iterable of this program's batches.")
    ] = None,
    names: Annotated[
        Path | None, typer.Option(help="`names.toml`: where PyTorch's tensors are in Flax.")
    ] = None,
    draft_names: Annotated[
        str | None,
        typer.Option(
            help="Print a draft of the names file, for the TrainState that this function makes.",
            metavar="FILE.PY:NAME",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Replay only this many steps.")] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Write the recording as one `.npz` and exit.")
    ] = None,
    json: Json = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the distance by step and stage as SVG.")
    ] = None,
    shows_traceback: ShowsTraceback = False,
) -> None:
    """See `_ABOUT`."""
    from equivalence_tests.pair.named import named_side
    from equivalence_tests.plot import stages_figure
    from equivalence_tests.recordings.format import in_flax, read
    from equivalence_tests.recordings.format import pack as pack_recordings
    from equivalence_tests.recordings.replay import compare_recordings
    from equivalence_tests.recordings.replay import replay as replay_recording
    from equivalence_tests.recordings.stages import Outcome
    from equivalence_tests.report.outputs import DIFFERENT, MISUSE, SAME, Outputs
    from equivalence_tests.sides.programs import check_arguments, silence_deprecations
    from optax_bridge.cli.programs import load_object, programs_given
    from optax_bridge.torch.checkpoints.names import read_names

    silence_deprecations()
    outputs = Outputs(json=json, svg=plot, shows_traceback=shows_traceback)
    try:
        outputs.check()
        if steps is not None and steps < 1:
            raise ValueError(f"--steps is {steps}; it must be at least 1")
        with programs_given(program_arguments(ctx)):
            if pack is not None:
                pack_recordings({recording.stem: read(recording, steps)}, pack)
                raise typer.Exit(SAME)
            if draft_names is not None:
                from optax_bridge.torch.checkpoints.draft import draft_names as draft
                from optax_bridge.torch.checkpoints.layout import torch_checkpoint

                tensors = torch_checkpoint(read(recording).steps[0].tensors, str(recording))
                print(draft(tensors, load_object(draft_names, make=True)), end="")
                raise typer.Exit(SAME)
            named = {"optimizer": optimizer, "loss": loss, "batches": batches}
            asked = {name: text for name, text in named.items() if text is not None}
            if other is None and not asked:
                raise ValueError(
                    f"{recording}: give something to compare it with: --optimizer, --loss, "
                    "--batches, or another recording"
                )
            if other is None:
                loads = {"optimizer": named_side, "loss": load_object, "batches": load_object}
                objects = {name: loads[name](text) for name, text in asked.items()}
                result = replay_recording(recording, names=names, steps=steps, **objects)
            elif asked:
                raise ValueError(
                    f"{other}: with a second recording leave out --optimizer, --loss and --batches"
                )
            else:
                left, right = read(recording, steps), read(other, steps)
                left = left if names is None else in_flax(left, read_names(names))
                result = compare_recordings(left, right)
            check_arguments()
    except ValueError as error:
        raise typer.Exit(outputs.write_error(str(recording), error, "replay")) from None
    print(result)
    series = {stage.name: stage.distance for stage in result.stages if len(stage.distance)}
    parted = "" if result.first is None else result.first.name
    picture = stages_figure(series, parted, result.headline) if plot else ""
    done = outputs.write(result.as_dict(), svg=picture)
    same = result.outcome in (Outcome.IDENTICAL, Outcome.ROUNDING)
    raise typer.Exit((SAME if same else DIFFERENT) if done else MISUSE)

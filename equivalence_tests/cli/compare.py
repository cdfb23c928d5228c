"""`optax-bridge compare`: any two optimizers, by runs and by proof, as one verdict."""

import functools
import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from equivalence_tests.cli.options import (
    EXIT_CODES_ON_PLATFORM,
    WHICH_COMMAND,
    Gradients,
    Json,
    Junit,
    Platform,
    ReportFolder,
    WithProgramArguments,
    program_arguments,
)
from optax_bridge.cli.app import STYLE
from optax_bridge.cli.options import ShowsTraceback

if TYPE_CHECKING:
    from equivalence_tests.pair.evidence import Evidence
    from equivalence_tests.pair.named import NamedSide
    from equivalence_tests.report.outputs import Outputs
    from equivalence_tests.sides.adapt import SideLike
    from equivalence_tests.sides.inputs.gradients import Gradients as Stream
    from optax_bridge.metadata.trees import Params

app = typer.Typer(**STYLE)
_GROUP = "compare"  # in JUnit's XML

_SIDE = (
    "`module:name` or `file.py:name` of an optimizer, of a function that makes it, or of a class "
    "of torch.optim; or a constructor call, parsed and never evaluated: `Adam(1e-3)`, "
    "`optax.adamw(1e-3)`."
)
_ABOUT = f"""Compare two optimizers by runs and by proof, and explain a difference where possible.

Both take steps side by side on hostile gradients; the proof covers all inputs. The output is the
verdict, the explanation of a difference, the runs, and the proof with its assumptions. Parameters
have the shapes 128x128, 129x3, 3, 2x3x4 and scalar unless `--params` names others; the runs do not
show what a program does at other sizes.

{WHICH_COMMAND}
{EXIT_CODES_ON_PLATFORM}
Examples:
- `optax-bridge compare mine:old mine:new`

- `optax-bridge compare "Adam(1e-3)" "optax.adamw(1e-3)"`

- `optax-bridge compare torch.optim:AdamW optax:adamw --args "lr=1e-3" "1e-3"`

- `optax-bridge compare old.py:make new.py:make -- --config=configs/default.py`

- `optax-bridge compare mine:old_of mine:new_of --hyper-params learning_rate=1e-3`
"""


@app.command(help=_ABOUT, cls=WithProgramArguments)
def compare(
    ctx: typer.Context,
    left: Annotated[str, typer.Argument(metavar="LEFT", help=_SIDE)],
    right: Annotated[str, typer.Argument(metavar="RIGHT", help="The other side.")],
    args: Annotated[
        tuple[str, str],
        typer.Option(
            help="The arguments of each side's function, as in a call: "
            '`"lr=1e-3" "1e-3, nesterov=True"`; `""` for none. Parsed, never evaluated. '
            "A side without a learning rate takes that of the other.",
        ),
    ] = ("", ""),
    params: Annotated[
        str | None,
        typer.Option(help="`module:params`, or shapes such as `w=4x3,b=3`; default: those above."),
    ] = None,
    hyper_params: Annotated[
        str | None,
        typer.Option(
            help="Prove the claim for all values of these settings, given with examples: "
            "`learning_rate=1e-3,decay=0.1`, or `module:numbers`. The sides are then functions of "
            "a mapping with these names."
        ),
    ] = None,
    gradients: Gradients = "all",
    steps: Annotated[int, typer.Option(help="Number of steps in the runs.")] = 160,
    histogram: Annotated[
        bool, typer.Option("--histogram", help="Print a histogram of distances in ULP.")
    ] = False,
    platform: Platform = None,
    json: Json = None,
    junit: Junit = None,
    report: ReportFolder = None,
    shows_traceback: ShowsTraceback = False,
) -> None:
    """See `_ABOUT`."""
    # JAX, which no help needs
    from equivalence_tests.environment import first_device, xla_flags
    from equivalence_tests.report.outputs import NOT_RUN, Outputs
    from equivalence_tests.sides.programs import check_arguments, old_names, silence_deprecations
    from optax_bridge.cli.programs import load_object, programs_given
    from optax_bridge.cli.terminal import plain_terminal

    silence_deprecations()
    os.environ["XLA_FLAGS"] = xla_flags()
    outputs = Outputs(json, junit, report, shows_traceback=shows_traceback)
    try:
        device = first_device(platform)
        outputs.check()
        if hyper_params is not None and any(args):
            raise ValueError("--args: with --hyper-params the sides take those settings alone")
        with old_names(), programs_given(program_arguments(ctx)):
            try:
                sides = _sides((left, right), args, hyper_params is not None)
            finally:  # a misspelt flag may be what went wrong
                check_arguments()
            numbers = None if hyper_params is None else _numbers(hyper_params)
            if device is None:
                print(f"{platform}: not run, this machine has no such device")
                raise typer.Exit(NOT_RUN)
            stream = load_object(gradients) if ":" in gradients else gradients
            with plain_terminal(stderr=True).status("running, proving and explaining"):
                evidence = _evidence(sides, numbers, params, stream, steps, device)
            print(evidence)
            if histogram:
                print(f"distances (ULP): {evidence.runs.agreeing.counts}")
            for name in [str(side) for side in sides if side.is_port]:
                print(f"{name}: PyTorch is not installed, so this project's port ran instead")
            code = _write(evidence, device, outputs)
    except ValueError as error:
        code = outputs.write_error(f"{left} / {right}", error, _GROUP)
    raise typer.Exit(code)


def _sides(
    names: tuple[str, str], args: tuple[str, str], are_functions: bool
) -> "Sequence[NamedSide]":
    from equivalence_tests.pair.named import NamedSide, named_pair
    from optax_bridge.cli.programs import load_object

    if are_functions:
        return [NamedSide(name, None, load_object(name)) for name in names]
    return named_pair((names[0], args[0]), (names[1], args[1]))


def _evidence(
    sides: "Sequence[NamedSide]",
    numbers: Mapping[str, float] | None,
    params: str | None,
    stream: "Stream",
    steps: int,
    device: Any,
) -> "Evidence":
    """Returns the evidence on two sides from runs and proof, with the reason of a difference."""
    import jax

    from equivalence_tests.pair.equivalence import check_equivalence
    from equivalence_tests.pair.evidence import Evidence, prove_sides
    from equivalence_tests.pair.explanation import explanation, known_recipe
    from equivalence_tests.sides.side import EquivalenceError
    from optax_bridge.correspondence import Verdict

    names = (str(sides[0]), str(sides[1]))

    def both() -> tuple["SideLike", "SideLike"]:  # again, as a run may leave its marks in Python
        pair = tuple(side.build() if numbers is None else side.value(numbers) for side in sides)
        return pair[0], pair[1]

    tree = _params(params)
    compared = functools.partial(
        check_equivalence, params=tree, gradients=stream, steps=steps, names=names
    )
    with jax.default_device(device):
        try:
            runs = compared(*both())
        except EquivalenceError as error:
            if params is None and error.__cause__ is not None:  # a side raised it
                raise EquivalenceError(f"{str(error).rstrip('.')}. {_CHOSEN}") from error
            raise
        asked = both() if numbers is None else tuple(side.value for side in sides)
        proof, unproved = prove_sides(*asked, params=tree, hyper_params=numbers, names=names)
        why = ""
        if numbers is None and Evidence(runs, proof, unproved).verdict is Verdict.DIFFERENT:
            different = runs.verdict is Verdict.DIFFERENT
            settings = explanation(sides[0], sides[1], compared) if different else None
            why = str(settings or known_recipe(sides, tree))
    return Evidence(runs, proof, unproved, why)


def _write(evidence: "Evidence", device: Any, outputs: "Outputs") -> int:
    """Writes the files of the evidence; returns the exit code."""
    from equivalence_tests.environment import environment
    from equivalence_tests.report.item import Difference, of_message, of_report
    from equivalence_tests.report.outputs import DIFFERENT, MISUSE, SAME
    from optax_bridge.correspondence import Verdict

    different = evidence.verdict is Verdict.DIFFERENT
    remarks = filter(None, (evidence.explanation, evidence.disagreement))
    why = f"{'. '.join(remarks)} proof: {evidence.about_proof()}".strip()
    title = " / ".join(evidence.runs.names)
    items = [of_report(title, evidence.runs, why, _GROUP)]
    if different and evidence.runs.verdict is not Verdict.DIFFERENT:
        message = Difference(evidence.about_proof())
        items.append(of_message(f"{title}, by proof", message, _GROUP))
    done = outputs.write(
        evidence.as_dict(), items, title=title, about=environment(device),
        headline=evidence.headline,
    )  # fmt: skip
    return (DIFFERENT if different else SAME) if done else MISUSE


_CHOSEN = (
    "The parameters were chosen: a scalar, and arrays of one to three axes. For others, name them, "
    "as --params w=4x3,b=3. A state that has parameters is compared by optax-bridge check-resume"
)
_SHAPE = re.compile(r"(?P<name>[^=]+)=(?P<sizes>(?:\d{1,9}(?:x\d{1,9})*)?)", re.ASCII)


def _params(text: str | None) -> "Params":
    """Returns the parameters of the runs and of the proof."""
    import numpy as np

    from equivalence_tests.sides.inputs.problems import usual_params
    from optax_bridge.cli.programs import load_object

    if text is None:
        return usual_params()
    if ":" in text:
        return load_object(text, make=True)
    shapes: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        match = _SHAPE.fullmatch(part)
        if match is None or match["name"] in shapes:
            raise ValueError(
                f"--params {text}: expected shapes as w=4x3,b=3 (nothing behind = for a number), "
                f"each name once, or module:name; found {part!r}"
            )
        shapes[match["name"]] = tuple(map(int, filter(None, match["sizes"].split("x"))))
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _numbers(text: str) -> dict[str, float]:
    from equivalence_tests.pair.named import parsed_arguments
    from optax_bridge.cli.programs import load_object

    if ":" in text:
        return dict(load_object(text, make=True))
    where = f"--hyper-params {text}: expected name=number,..., or module:name"
    args, numbers = parsed_arguments(text, where)
    if args:
        raise ValueError(where)
    floats: dict[str, float] = {}
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise ValueError(where)
        floats[name] = float(number)
    return floats

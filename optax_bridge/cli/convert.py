"""`optax-bridge convert`: one checkpoint to another."""

import contextlib
import enum
import functools
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optax_bridge.cli import pytorch
from optax_bridge.cli.configuration import ConfigurationError, read_configuration
from optax_bridge.cli.interrupts import Interrupts
from optax_bridge.cli.options import Recipe
from optax_bridge.cli.programs import migration_remedy, object_named, with_own_arguments
from optax_bridge.cli.signals import repeat_interrupt

if TYPE_CHECKING:
    from optax_bridge.checkpoints.convert import Conversion
    from optax_bridge.cli.terminal import Terminal
    from optax_bridge.torch.checkpoints.files import Returned


class Target(enum.StrEnum):
    """What `convert` makes."""

    OPTAX = "optax"
    LEGACY = "legacy"
    TORCH = "torch"


class Layout(enum.StrEnum):
    """Where `convert` puts what stood around an optimizer."""

    KEEP = "keep"
    FLAT = "flat"


DONE, FAILED, MISUSE = 0, 1, 2


def convert(
    source: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of numbered ones.")],
    destination: Annotated[Path, typer.Argument(help="What to write.")],
    optimizer: Annotated[
        list[str] | None,
        typer.Option(
            help="The legacy constructor call; read from the state where that is clear. Of several "
            'optimizers one for each, with where it stands: `"actor=Adam(1e-3)"`.'
        ),
    ] = None,
    to: Annotated[
        Target,
        typer.Option(
            help="`optax`: a TrainState; `legacy`: an Optimizer, the way back; `torch`: a file of "
            "PyTorch, with --like, --names and --base."
        ),
    ] = Target.OPTAX,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="What to write a TrainState as: `orbax`, `msgpack`; a wrong name lists all.",
        ),
    ] = "orbax",
    params_only: Annotated[
        bool, typer.Option("--params-only", help="Write the parameters alone.")
    ] = False,
    recipe: Annotated[
        Recipe | None,
        typer.Option(
            help="Whose state: `stock`, the default: that of public Optax where it is the same but "
            "for rounding, else of the exact recipe, as `migrate` does; `exact`; `standalone`: "
            "public Optax wherever it has an equal. `[tool.optax-bridge]` may say another default."
        ),
    ] = None,
    layout: Annotated[
        Layout,
        typer.Option(help="`keep`: what stood around the optimizer stays; `flat`: one TrainState."),
    ] = Layout.KEEP,
    like: Annotated[
        str | None,
        typer.Option(
            help="The template, `train.py:make_state`: a function of the program that makes what "
            "it saves. It decides everything, also for several optimizers."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Which optimizer, e.g. `generator`, if several; back, its place."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            help="Of a checkpoint of PyTorch: `names.toml`, which says where each tensor goes; "
            "`inspect --names` drafts it."
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            min=0, help="Steps taken, where a checkpoint of PyTorch does not say, as SGD's."
        ),
    ] = None,
    base: Annotated[
        Path | None,
        typer.Option(
            help="With --to torch: a checkpoint of the PyTorch program, for groups and settings."
        ),
    ] = None,
    allow_nan: Annotated[
        bool,
        typer.Option(
            "--allow-nan", help="Let NaN and infinities in parameters and moments through."
        ),
    ] = False,
    verify: Annotated[bool, typer.Option(help="Read again and compare every leaf.")] = True,
    force: Annotated[bool, typer.Option("--force", help="Replace the checkpoint there.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Convert a checkpoint of flax.optim or PyTorch, moments and step too, or convert it back.

    The source is only read; the destination appears whole or not at all. Exit code 0, 1 if it
    cannot be converted, 2 for misuse, a path at which there is nothing included.

    Examples:
    - `optax-bridge convert checkpoint_100 new/ --optimizer "Adam(learning_rate=1e-3)"`

    - `optax-bridge convert checkpoint_100 new/ --like train.py:make_state`

    - `optax-bridge convert new/ checkpoint_100 --to legacy --optimizer "Adam(1e-3)"`

    - `optax-bridge convert old new --optimizer "actor=Adam()" --optimizer "critic=Adam()"`

    - `optax-bridge convert old new --optimizer 'MultiOptimizer(("*/bias", Adam(0.1)))'`

    - `optax-bridge convert ckpt.pt new/ --like train.py:make_state --names names.toml`
    """
    with Interrupts(destination) as interrupts:
        # JAX and Orbax, which no help needs
        from optax_bridge.checkpoints.convert import Conversion
        from optax_bridge.checkpoints.read import writable
        from optax_bridge.cli.terminal import plain_terminal
        from optax_bridge.torch.checkpoints.files import moved_to_flax

        interrupts.is_starting = False
        if file_format not in writable():
            known = ", ".join(map(repr, writable()))
            message = f"{file_format!r} is not one of {known}"
            raise typer.BadParameter(message, param_hint="--format")
        errors = plain_terminal(stderr=True)
        try:
            default = read_configuration(Path.cwd()).recipe
        except ConfigurationError as error:
            errors.print(str(error))
            raise typer.Exit(MISUSE) from None
        options: dict[str, Any] = {
            "to_legacy": to is Target.LEGACY, "file_format": file_format,
            "params_only": params_only, "recipe": recipe.value if recipe else default,
            "layout": layout.value, "part": part, "allow_nan": allow_nan, "verify": verify,
            "force": force,
        }  # fmt: skip
        torch_options = {"names": names, "step": step, "base": base}
        is_back = to is Target.TORCH
        refusal = _misuse(source, optimizer or (), like, recipe, options) or pytorch.misuse(
            is_back, like, optimizer, options, torch_options
        )
        if refusal:
            errors.print(refusal)
            raise typer.Exit(MISUSE)
        with _undisturbed(errors) as progress:
            if is_back:
                done = _returned(source, destination, like, options, torch_options)
            else:
                options["moved"] = functools.partial(
                    moved_to_flax, names=names, params_only=params_only, step=step
                )
                done = _converted(source, destination, optimizer or (), like, progress, options)
        if isinstance(done, str):
            errors.print(done)
            raise typer.Exit(FAILED)
        if not isinstance(done, Conversion):
            assert base is not None  # else it were misuse
            pytorch.report_returned(done, destination, base, json)
            raise typer.Exit(DONE)
        for note in _notes(done):
            errors.print(note)
        _report(done, destination, verify, json, like)
    raise typer.Exit(DONE)


def _notes(done: "Conversion") -> Iterator[str]:
    """Says where public Optax is not the same for the parameters of this checkpoint alone."""
    from optax_bridge.correspondence import choose_recipe

    for path, choice in done.choices.items():
        several = isinstance(done.definition, dict)
        definition = done.definition[path] if several else done.definition
        if choice.kind == "stock" and choice.reason:
            yield f"note: {choice.reason}; its state was written as asked for, by standalone"
        elif choice.reason and choose_recipe(definition, "stock", {"float32"}).kind == "stock":
            yield (
                f"note: {choice.reason}. So it is the state of the exact recipe; --recipe "
                "standalone writes that of public Optax"
            )


def _misuse(
    source: Path,
    optimizers: Sequence[str],
    like: str | None,
    recipe: Recipe | None,
    options: Mapping[str, Any],
) -> str:
    """Says which options do not go together, or what cannot be read of them; "" if nothing."""
    from optax_bridge.checkpoints.definitions import parse_definitions
    from optax_bridge.correspondence.expression import ExpressionError

    if not os.path.lexists(source):
        return nothing_there(source)
    alone = options["to_legacy"] or options["params_only"] or options["part"]
    flat = options["layout"] == Layout.FLAT.value
    if like is not None and (optimizers or alone or flat or recipe is not None):
        return (
            "--like says what everything becomes: leave --optimizer, --to legacy, --params-only, "
            "--part, --layout flat and --recipe out"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            named = parse_definitions(optimizers)
        except (ExpressionError, TypeError, ValueError) as error:
            return str(error)
    if named and set(named) != {""} and (alone or flat):
        return (
            "with several optimizers all are converted where they stand: leave --to legacy, "
            "--params-only, --part and --layout flat out"
        )
    return ""


def nothing_there(path: Path) -> str:
    """The error about a path at which there is nothing, which is misuse in every command."""
    return f"{path}: expected a checkpoint, found nothing of that name. Check the path."


def _converted(
    source: Path,
    destination: Path,
    optimizers: Sequence[str],
    like: str | None,
    progress: Any,
    options: Mapping[str, Any],
) -> "Conversion | str":
    """What was done, or why it could not be."""
    from optax_bridge.checkpoints.convert import convert_file
    from optax_bridge.checkpoints.definitions import parse_definitions
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.correspondence import UnsupportedSetting
    from optax_bridge.optimizers.selectors import NothingSelectedWarning

    # The old optimizers' advice to move on is what is being followed.
    warnings.simplefilter("ignore", DeprecationWarning)
    if like is None:  # a group that holds nothing is the checkpoint's own, and stays as it is
        warnings.simplefilter("ignore", NothingSelectedWarning)
    named = parse_definitions(optimizers)
    definition: Any = named[""] if set(named) == {""} else named or None
    try:
        template = None if like is None else template_named(like)
        return convert_file(
            source, destination, definition, like=template, progress=progress, **options
        )
    except (CheckpointError, UnsupportedSetting) as error:
        return str(error)
    except OSError as error:
        return f"{destination}: {error}"


def _returned(
    source: Path, destination: Path, like: str | None, options: Any, torch_options: Any
) -> "Returned | str":
    """What was written for PyTorch, or why nothing could be."""
    from optax_bridge.checkpoints.errors import CheckpointError

    try:
        return pytorch.returned(
            source, destination, template_named(like or ""), options, torch_options
        )
    except CheckpointError as error:
        return str(error)


@contextlib.contextmanager
def _undisturbed(errors: "Terminal") -> Iterator[Any]:
    """Shows a progress bar on a terminal; ends by SIGTERM as by an error, so that nothing is left.

    Yields:
      A function of the phase, the bytes done and the bytes in all; None without a terminal.
    """
    import rich.progress

    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    bar = rich.progress.Progress(*columns, console=errors, transient=True)
    tasks: dict[str, rich.progress.TaskID] = {}

    def progress(phase: str, done: int, total: int) -> None:
        if phase not in tasks:
            tasks[phase] = bar.add_task(phase, total=total)
        bar.update(tasks[phase], completed=done)

    before = signal.signal(signal.SIGTERM, _terminate)
    # Orbax's threads report a failure once more, and may do so late; one error is enough.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    hook, sys.unraisablehook = sys.unraisablehook, _without_closed_loops
    try:
        with bar if errors.is_terminal else contextlib.nullcontext():
            yield progress if errors.is_terminal else None
    finally:
        signal.signal(signal.SIGTERM, before)
        if hook is not sys.__unraisablehook__:  # the plain one need not come back: threads go on
            sys.unraisablehook = hook


def _terminate(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


def _without_closed_loops(unraisable: Any) -> None:
    """Drops what threads of tensorstore say to an event loop that Orbax closed when it failed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        repeat_interrupt(unraisable)


def _report(
    done: "Conversion", destination: Path, verified: bool, json: bool, like: str | None
) -> None:
    """Prints what was done, as a line or as JSON."""
    from flax.serialization import to_state_dict

    from optax_bridge.checkpoints.trees import is_array, leaves
    from optax_bridge.cli.terminal import plain_terminal
    from optax_bridge.torch.checkpoints.files import is_torch

    read = done.read
    arrays = [leaf for _, leaf in leaves(to_state_dict(done.tree)) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    recipes = {path: choice.kind for path, choice in done.choices.items()}
    definitions = done.definition if isinstance(done.definition, dict) else {"": done.definition}
    classes = {path: type(each).__name__ for path, each in definitions.items() if each is not None}
    if like:
        classes = {} if is_torch(read) else _classes_by_place(done)

    def listed(ends: Mapping[str, str]) -> str:
        return ", ".join(
            f"{path}: {name}{ends.get(path, '')}" if path else f"{name}{ends.get(path, '')}"
            for path, name in classes.items()
        )

    if json:
        kinds = set(recipes.values())
        print(dumps({
            "source": str(read.path), "format": read.description, "destination": str(destination),
            "optimizer": listed({}) or None,
            "recipe": kinds.pop() if len(kinds) == 1 else recipes or None, "step": done.step,
            "arrays": len(arrays), "bytes": size, "verified": verified,
        }))  # fmt: skip
        return
    what = listed({path: f" ({kind})" for path, kind in recipes.items()})
    what = f"{what} as the template has it".lstrip() if like else what or "parameters alone"
    checked = ", read again and compared" if verified else ""
    plain_terminal().print(
        f"{read.path} ({read.description}) -> {destination}: {what}, {len(arrays)} arrays, "
        f"{size:,} bytes{checked}"
    )


def _classes_by_place(done: "Conversion") -> dict[str, str]:
    """The legacy class of each optimizer by where it stood, as the template's states tell it."""
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.checkpoints.locate import find_parts, looks_like
    from optax_bridge.checkpoints.trees import is_state, state_dict_of
    from optax_bridge.states import legacy_classes

    try:
        parts = find_parts(done.read.tree, done.read.path)
    except CheckpointError:  # the members of a population, which no definition is asked about
        return {}
    found: dict[str, str] = {}
    for part in parts:
        node: Any = state_dict_of(done.tree)
        for name in part.path:
            node = node if is_state(node) or not isinstance(node, Mapping) else node.get(name)
        possible = looks_like(part).split(" or ")
        classes = [name for name in legacy_classes(node.opt_state) if name in possible]
        found[part.name] = " or ".join(classes or possible)
    return found


def template_named(name: str) -> Any:
    """What a function of a program makes.

    Args:
      name: `package.module:make_state`, or `folder/program.py:make_state`; modules of the current
        folder are found. The function takes no arguments and returns a `TrainState`, or whatever
        the program saves that holds some; it may also be that itself.

    Raises:
      CheckpointError: there is nothing of that name, or it fails.
    """
    from optax_bridge.checkpoints.errors import CheckpointError, brief

    module, _, attribute = name.rpartition(":")
    if not module or not attribute:
        raise CheckpointError(
            name, "module:function, e.g. train.py:make_state", brief(name),
            "Name the function that makes what the program saves.",
        )  # fmt: skip
    try:
        value = object_named(module, attribute)
        if not callable(value):
            return value
        with with_own_arguments(module):
            return value()
    except (Exception, SystemExit) as error:  # whatever the user's program raises
        remedy = migration_remedy(error) or (
            "The program is imported and the function called without arguments: what runs it "
            "belongs below if __name__ == '__main__', or the function into a file of its own."
        )
        raise CheckpointError(
            name, "what a program saves", f"{type(error).__name__}: {brief(str(error), 300)}",
            remedy,
        ) from error  # fmt: skip

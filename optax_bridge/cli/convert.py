"""`optax-bridge convert`: one checkpoint to another."""

import contextlib
import functools
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from optax_bridge._text import listing
from optax_bridge.cli import pytorch
from optax_bridge.cli.configuration import ConfigurationError, read_configuration
from optax_bridge.cli.options import ConvertOptions, Layout, Recipe, ShowsTraceback, Target
from optax_bridge.cli.programs import ProgramError, load_object

if TYPE_CHECKING:
    from optax_bridge.checkpoints.conversions import Conversion
    from optax_bridge.checkpoints.read import Read
    from optax_bridge.cli.terminal import Terminal
    from optax_bridge.correspondence import Choice
    from optax_bridge.correspondence.choice import RecipeKind
    from optax_bridge.correspondence.recipe import Node
    from optax_bridge.metadata.trees import PyTree
    from optax_bridge.torch.checkpoints.files import Returned


DONE, FAILED, MISUSE = 0, 1, 2

_Source = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="A checkpoint, or a folder of numbered ones.")
]
_Destination = Annotated[Path, typer.Argument(metavar="DESTINATION", help="The path to write.")]
_Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        help="The legacy constructor call, if the state does not make it clear. With several "
        'optimizers, repeat the option for each, with its path: `"actor=Adam(1e-3)"`.'
    ),
]
_To = Annotated[
    Target,
    typer.Option(
        help="The result: `optax`, a TrainState; `legacy`, an old Optimizer; `torch`, a file of "
        "PyTorch, with --like, --names and --base."
    ),
]
_FileFormat = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="The format in which a TrainState is written: `orbax` or `msgpack`.",
    ),
]
_ParamsOnly = Annotated[bool, typer.Option("--params-only", help="Write the parameters alone.")]
_Recipe = Annotated[
    Recipe | None,
    typer.Option(
        help="The state to write. `auto`, the default: that of public Optax where it equals the "
        "old optimizer up to rounding, else this project's, as `migrate` chooses; `exact`: this "
        "project's, which `migrate` also chooses where each step takes a learning rate; `optax`: "
        "that of public Optax, if it has an equivalent. `[tool.optax-bridge]` sets the default."
    ),
]
_Layout = Annotated[
    Layout,
    typer.Option(help="`keep`: entries around the optimizer stay; `flat`: one TrainState."),
]
_Like = Annotated[
    str | None,
    typer.Option(
        help="The template, e.g. `train.py:make_state`: the function of the program that makes "
        "the state that it saves. It replaces --optimizer, also for several optimizers."
    ),
]
_Part = Annotated[
    str | None,
    typer.Option(
        help="Which optimizer to convert, e.g. `generator`, if there are several; with --to "
        "legacy, which part of the state becomes the Optimizer."
    ),
]
_Names = Annotated[
    Path | None,
    typer.Option(
        help="For a checkpoint of PyTorch: `names.toml`, which says where each tensor goes; "
        "`inspect --names` drafts it."
    ),
]
_Step = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="The number of steps taken, if a checkpoint of PyTorch lacks it, as with SGD.",
    ),
]
_Base = Annotated[
    Path | None,
    typer.Option(
        help="With --to torch: a checkpoint of the PyTorch program, for its groups and settings."
    ),
]
_AllowNaN = Annotated[
    bool,
    typer.Option("--allow-nan", help="Accept NaN and infinities in parameters and moments."),
]
_Verify = Annotated[bool, typer.Option(help="Read the result again and compare every leaf.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace a checkpoint that is there.")]
_DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Write nothing; print where each leaf goes."),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def convert(
    source: _Source,
    destination: _Destination,
    like: _Like = None,
    optimizer: _Optimizers = None,
    to: _To = Target.OPTAX,
    file_format: _FileFormat = "orbax",
    params_only: _ParamsOnly = False,
    recipe: _Recipe = None,
    layout: _Layout = Layout.KEEP,
    part: _Part = None,
    names: _Names = None,
    step: _Step = None,
    base: _Base = None,
    allow_nan: _AllowNaN = False,
    verify: _Verify = True,
    force: _Force = False,
    json: _Json = False,
    dry_run: _DryRun = False,
    shows_traceback: ShowsTraceback = False,
) -> None:
    """Convert a checkpoint of flax.optim or PyTorch, moments and step too, or convert it back.

    The source is only read; the destination appears whole or not at all.

    | exit code | means |
    |---|---|
    | 0 | converted |
    | 1 | the checkpoint cannot be converted |
    | 2 | misuse: options that do not go together, no checkpoint at the path, a program that fails |
    | 130 | interrupted; the destination is unchanged |

    Examples:
    - `optax-bridge convert checkpoint_100 new/ --like train.py:make_state`

    - `optax-bridge convert checkpoint_100 new/ --optimizer "Adam(learning_rate=1e-3)"`

    - `optax-bridge convert new/ checkpoint_100 --to legacy --optimizer "Adam(1e-3)"`

    - `optax-bridge convert old new --optimizer "actor=Adam()" --optimizer "critic=Adam()"`

    - `optax-bridge convert old new --optimizer 'MultiOptimizer(("*/bias", Adam(0.1)))'`

    - `optax-bridge convert ckpt.pt new/ --like train.py:make_state --names names.toml`
    """
    options = ConvertOptions(
        source, destination, optimizer or (), to, file_format, params_only, recipe, layout, like,
        part, names, step, base, allow_nan, verify, force, json, dry_run, shows_traceback,
    )  # fmt: skip
    raise typer.Exit(_run(options))


_INFERRED = (
    "note: no checkpoint has the learning rate, so this is the state of the exact recipe, which "
    'takes a rate at each step; --optimizer "{}" writes the state of public Optax, if equal'
)
RATE_AT_STEPS = (
    "note: if the program gives a learning rate at each step, convert with --like "
    "new.py:make_state: its state is another, and Flax would restore this into it with moments "
    "of zero, without an error"
)
_UNSUPPORTED = (
    "If the program's constructor has the rate, give it: --optimizer "
    '"Adam(learning_rate=1e-3)"; otherwise use --recipe exact, or --like train.py:make_state.'
)


def _run(options: ConvertOptions) -> int:
    """Converts, and prints the result or the error; returns the exit code."""
    # JAX and Orbax, which no help needs
    from optax_bridge.checkpoints.conversions import Conversion
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.checkpoints.read import writable
    from optax_bridge.cli.terminal import plain_terminal
    from optax_bridge.correspondence import UnsupportedSetting

    if options.file_format not in writable():
        message = f"{options.file_format!r} is not one of {', '.join(map(repr, writable()))}"
        raise typer.BadParameter(message, param_hint="--format")
    errors = plain_terminal(stderr=True)
    try:
        recipe = options.recipe or read_configuration(Path.cwd()).recipe
    except ConfigurationError as error:
        errors.print(str(error))
        return MISUSE
    if refusal := _misuse(options) or pytorch.misuse(options):
        errors.print(refusal)
        return MISUSE
    try:
        with errors.status("reading, converting, writing"), _quiet_threads(), warnings_to(errors):
            done = _convert(options, str(recipe))
    except ProgramError as error:
        if options.shows_traceback:
            traceback.print_exception(error)
        errors.print(str(error))
        return MISUSE
    except CheckpointError as error:
        errors.print(str(error))
        return FAILED
    except UnsupportedSetting as error:
        errors.print(f"{options.source}: {error} {_UNSUPPORTED}")
        return FAILED
    except OSError as error:
        errors.print(f"{options.destination}: {error}")
        return FAILED
    if not isinstance(done, Conversion):
        pytorch.report_returned(done, options)
        return DONE
    for note in _notes(done, options, recipe):
        errors.print(note)
    if options.dry_run:
        _print_moves(done, options.json)
    else:
        _report(done, options)
    return DONE


def _notes(done: "Conversion", options: ConvertOptions, recipe: object) -> Iterator[str]:
    """Says why the state is not public Optax's, or where public Optax is not the same.

    And for which programs it is not: of a msgpack file Flax tells them, but it reads Orbax's with
    transformations, and those leave what the file lacks as the template has it.
    """
    from optax_bridge.correspondence import choose_recipe
    from optax_bridge.correspondence.recipe import render

    kinds = [choice.kind for choice in done.choices.values()]
    if "optax" in kinds and options.file_format == "orbax":
        yield RATE_AT_STEPS
    for path, choice in done.choices.items():
        definition = done.definitions[path]
        if not options.optimizers and choice.kind == "exact" and recipe != "exact":
            yield _INFERRED.format(render(_as_call(definition)))
            continue
        if choice.kind == "optax" and choice.reason:
            yield f"note: {choice.reason}; its state was written because of --recipe optax"
        elif choice.reason and choose_recipe(definition, "auto", {"float32"}).kind == "optax":
            yield (
                f"note: {choice.reason}. So this is the state of the exact recipe; --recipe "
                "optax writes that of public Optax"
            )


def _as_call(optimizer: Any) -> "Node":
    """The constructor call of an inferred definition, with a learning rate in its place."""
    from optax_bridge.correspondence import Described, describe
    from optax_bridge.correspondence.recipe import Call, Source
    from optax_bridge.correspondence.table import with_inner

    described = optimizer if isinstance(optimizer, Described) else describe(optimizer)
    if not isinstance(described, Described):
        return described
    entry = described.entry
    call = entry.exact_recipe(with_inner(described.settings, _as_call))
    names = {hp.port: hp.legacy for hp in entry.hyper_params}
    settings = {names[port]: value for port, value in call.kwargs.items()}
    if described.settings.get("learning_rate", 0) is None:
        settings = {"learning_rate": Source("1e-3"), **settings}
    return Call(entry.legacy.__name__, call.args, settings)


def _misuse(options: ConvertOptions) -> str:
    """Returns the fault of the options, such as two that do not go together; "" if none."""
    from optax_bridge.checkpoints.definitions import parse_definitions
    from optax_bridge.correspondence.expression import ExpressionError

    if not os.path.lexists(options.source):
        return nothing_there(options.source)
    if options.dry_run and (options.params_only or options.to is Target.TORCH):
        return "--dry-run shows where a state's leaves go: leave out --params-only and --to torch"
    alone, flat = options.params_only or options.part, options.layout is Layout.FLAT
    legacy = options.to is Target.LEGACY
    if options.like is not None and (
        options.optimizers or alone or flat or legacy or options.recipe
    ):
        return (
            "--like decides the whole result, so it cannot be combined with --optimizer, --to "
            "legacy, --params-only, --part, --layout flat or --recipe. Leave out these, or --like; "
            "--to legacy needs --optimizer 'Adam(learning_rate=1e-3)'"
        )
    try:
        named = parse_definitions(options.optimizers)
    except (ExpressionError, TypeError, ValueError) as error:
        return str(error)
    if named and set(named) != {""} and (alone or flat):
        return (
            "several optimizers are all converted in place: leave out --params-only, --part and "
            "--layout flat"
        )
    return ""


def nothing_there(path: Path) -> str:
    """Returns the error for a path that does not exist, which is misuse in every command."""
    return f"{path}: expected a checkpoint, found nothing of that name. Check the path."


def _convert(options: ConvertOptions, recipe: str) -> "Conversion | Returned":
    """Writes the destination; returns the conversion."""
    from optax_bridge.checkpoints.convert import convert_file
    from optax_bridge.checkpoints.definitions import parse_definitions
    from optax_bridge.checkpoints.devices import without_memory
    from optax_bridge.optimizers.selectors import NothingSelectedWarning
    from optax_bridge.torch.checkpoints.files import moved_to_flax

    template = None if options.like is None else load_object(options.like, make=True)
    if options.names is None:  # whose state before the first step is the template's own
        template = without_memory(template)
    if options.to is Target.TORCH:
        return pytorch.write_back(options, template)
    if template is None:  # a group that holds nothing is the checkpoint's own
        warnings.simplefilter("ignore", NothingSelectedWarning)
    named = parse_definitions(options.optimizers)
    moved = functools.partial(
        moved_to_flax, names=options.names, step=options.step, program=options.like
    )
    return convert_file(
        options.source, options.destination, named[""] if set(named) == {""} else named or None,
        to_legacy=options.to is Target.LEGACY, file_format=options.file_format,
        params_only=options.params_only, recipe=cast("RecipeKind", recipe),
        layout=options.layout.value, like=template, part=options.part,
        allow_nan=options.allow_nan, verify=options.verify, force=options.force,
        moved=moved, dry_run=options.dry_run,
    )  # fmt: skip


@contextlib.contextmanager
def warnings_to(errors: "Terminal") -> Iterator[None]:
    """Prints warnings as sentences, without the lines of this package that gave them."""
    with warnings.catch_warnings(record=True) as caught:
        try:
            yield
        finally:
            for warning in caught:
                errors.print(f"warning: {warning.message}")


@contextlib.contextmanager
def _quiet_threads() -> Iterator[None]:
    """Lets Orbax's threads report nothing: they do so late, and once more than the one error."""
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    hook, sys.unraisablehook = sys.unraisablehook, _without_closed_loops
    try:
        yield
    finally:
        if hook is not sys.__unraisablehook__:  # the plain one need not come back: threads go on
            sys.unraisablehook = hook


def _without_closed_loops(unraisable: "sys.UnraisableHookArgs") -> None:
    """Drops the errors of tensorstore's threads about an event loop that Orbax closed."""
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _print_moves(done: "Conversion", as_json: bool) -> None:
    """Prints where each leaf of the source goes, and which have no place."""
    from optax_bridge.cli.terminal import plain_terminal
    from optax_bridge.metadata.paths import leaf_name

    dropped, plan = done.dropped(), [done.read.from_file(move) for move in done.moves]
    if as_json:
        moves = [move.facts() for move in plan]
        print(dumps({"moves": moves, "dropped": [list(path) for path in dropped]}))
        return
    console = plain_terminal()
    for move in plan:
        console.print(str(move))
    for path in dropped:
        console.print(f"{leaf_name(path)} is dropped")
    console.print("Nothing was written; entries around the optimizers stay as they are.")


def _report(done: "Conversion", options: ConvertOptions) -> None:
    """Prints the result, as a line or as JSON."""
    from flax.serialization import to_state_dict

    from optax_bridge.checkpoints.trees import is_array
    from optax_bridge.cli.terminal import plain_terminal
    from optax_bridge.metadata.paths import leaves
    from optax_bridge.torch.checkpoints.files import is_torch

    read = done.read
    arrays = [leaf for _, leaf in leaves(to_state_dict(done.tree)) if is_array(leaf)]
    size = sum(leaf.nbytes for leaf in arrays)
    recipes = {path: choice.kind for path, choice in done.choices.items()}
    classes = {path: type(value).__name__ for path, value in done.definitions.items()}
    if options.like:
        classes = {} if is_torch(read) else _classes_by_place(done)

    def classes_with(ends: Mapping[str, str]) -> str:
        return ", ".join(
            f"{path}: {name}{ends.get(path, '')}" if path else f"{name}{ends.get(path, '')}"
            for path, name in classes.items()
        )

    if options.json:
        kinds = set(recipes.values())
        print(dumps({
            "source": str(read.path), "format": read.description,
            "destination": str(options.destination), "optimizer": classes_with({}) or None,
            "recipe": kinds.pop() if len(kinds) == 1 else recipes or None, "step": done.step,
            "arrays": len(arrays), "bytes": size, "verified": options.verify,
        }))  # fmt: skip
        return
    programs = {path: _transformation(choice) for path, choice in done.choices.items()}
    made = classes_with({path: f" (for a program with {tx})" for path, tx in programs.items()})
    made = f"{made} as the template has it".lstrip() if options.like else made or "parameters alone"
    checked = ", read again and compared" if options.verify else ""
    plain_terminal().print(
        f"{read.path}{newest_of(read, options.source)} ({read.description}) -> "
        f"{options.destination}: {made}, "
        f"{len(arrays)} arrays, {size:,} bytes{checked}"
    )


def newest_of(read: "Read", source: Path) -> str:
    """Says of which series a checkpoint was chosen; "" if the source is not a folder of several."""
    from optax_bridge.checkpoints.read import count_of_series

    is_chosen = source.is_dir() and read.path.parent == source
    count = count_of_series(read.path) if is_chosen else 1
    return f", the newest of {count}" if count > 1 else ""


def _transformation(choice: "Choice") -> str:
    """The transformation of a recipe by its names, without its settings."""
    from optax_bridge.correspondence.recipe import Call

    if choice.parts:
        within = dict.fromkeys(map(_transformation, choice.parts))
        return f"{choice.call.target} of {listing(list(within))}"
    parts = [part.target for part in choice.call.args if isinstance(part, Call)]
    return f"{choice.call.target}({', '.join(parts)})" if parts else choice.call.target


def _classes_by_place(done: "Conversion") -> dict[str, str]:
    """The legacy class of each optimizer by where it stood, as the template's states tell it."""
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.checkpoints.inference import looks_like
    from optax_bridge.checkpoints.locate import find_parts
    from optax_bridge.checkpoints.trees import is_state, state_dict_of
    from optax_bridge.states import legacy_classes

    try:
        parts = find_parts(done.read.tree, done.read.path)
    except CheckpointError:  # the members of a population, which no definition is asked about
        return {}
    class_names: dict[str, str] = {}
    for part in parts:
        node: PyTree = state_dict_of(done.tree)
        for name in part.path:
            node = node if is_state(node) or not isinstance(node, Mapping) else node.get(name)
        possible = looks_like(part).split(" or ")
        classes = [name for name in legacy_classes(node.opt_state) if name in possible]
        class_names[part.name] = " or ".join(classes or possible)
    return class_names

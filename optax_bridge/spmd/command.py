"""`optax-bridge train`: runs a trainer that a config describes.

JAX is imported by the functions that need it: no help does.
"""

import contextlib
import inspect
import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optax_bridge.cli.errors import user_frame
from optax_bridge.cli.options import Devices, ShowsTraceback
from optax_bridge.cli.programs import module_named
from optax_bridge.cli.terminal import Terminal, plain_terminal

if TYPE_CHECKING:
    from optax_bridge.spmd.config import ConfigBase
    from optax_bridge.spmd.trainer import SpmdTrainer

_EXAMPLE = "optax-bridge train optax_bridge.spmd.examples.regression.trainer --dir run"
_SIGNALS: dict[int, int] = {signal.SIGINT: 130, signal.SIGTERM: 143}

Config = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help="`package.module.function` or `module:function` that returns a trainer's config; or a "
        "`trainer_config.txt` that a run wrote.",
    ),
]
Folder = Annotated[
    Path | None, typer.Option("--dir", help="The folder of the run; sets the config's `dir`.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Set a field, e.g. `trainer.max_step=1000`; may be repeated. Parsed, never evaluated.",
    ),
]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print the config and train nothing.")
]
Seed = Annotated[
    int, typer.Option(min=-(2**63), max=2**63 - 1, help="Seed of a new run's random numbers.")
]
ResumeFrom = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="STEP",
        help="Resume from the checkpoint of this step; later ones are set aside, not deleted.",
    ),
]
Coordinator = Annotated[
    str | None, typer.Option(help="`host:port` of process 0, if there are several processes.")
]
Processes = Annotated[int | None, typer.Option(help="Number of processes.")]
ProcessId = Annotated[int | None, typer.Option(help="Index of this process, from 0.")]


def train(
    config: Config = None,
    folder: Folder = None,
    overrides: Overrides = None,
    print_config: PrintConfig = False,
    seed: Seed = 0,
    resume_from: ResumeFrom = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: Processes = None,
    process_id: ProcessId = None,
    shows_traceback: ShowsTraceback = False,
) -> None:
    """Run the training that a config describes, or resume it from the checkpoint in its folder.

    Ctrl-C and SIGTERM save a checkpoint, and the same command resumes from it.

    | exit code | means |
    |---|---|
    | 0 | done |
    | 1 | the run failed: a loss that is not finite, an indivisible batch, a full disk |
    | 2 | misuse |
    | 130, 143 | ended by Ctrl-C, by SIGTERM |

    Examples:
    - `optax-bridge train optax_bridge.spmd.examples.language_model.trainer --dir run`

    - `optax-bridge train mine.config --dir run --set trainer.max_step=1000`

    - `optax-bridge train run/trainer_config.txt --dir again`
    """
    with _report_misuse(shows_traceback):
        if config is None:
            raise ConfigNotFound(f"train needs a config, for example\n    {_EXAMPLE}")
        _connect(devices, coordinator, processes, process_id)
        cfg = _find_config(config, folder, overrides or ())
        if print_config:
            typer.echo(cfg.debug_string())
            return
        trainer = _make_trainer(cfg)
    raise typer.Exit(_run(trainer, seed, resume_from, shows_traceback))


class ConfigNotFound(ValueError):
    """The named config does not exist."""


@contextlib.contextmanager
def _report_misuse(shows_traceback: bool) -> Iterator[None]:
    """Turns an error in a config or a command line into a message and exit code 2."""
    from optax_bridge.spmd.config import RequiredFieldMissingError

    try:
        yield
    except Exception as error:
        if shows_traceback or not (isinstance(error, ValueError | TypeError) or user_frame(error)):
            raise
        hint = ""
        if isinstance(error, RequiredFieldMissingError):
            hint = " On the command line: --set FIELD=VALUE."
        plain_terminal(stderr=True).print(_message(error) + hint)
        raise typer.Exit(2) from None


def _load_config(name: str) -> Any:
    """A trainer's config by its name."""
    from optax_bridge.spmd.config import from_debug_string
    from optax_bridge.spmd.config.values import unknown_name

    if os.getcwd() not in sys.path:  # where the user's programs are, as with `python -m`
        sys.path.insert(0, os.getcwd())
    if name.endswith(".txt") or os.sep in name:
        file = Path(name)
        if not file.is_file():
            raise ConfigNotFound(
                f"{name}: no such file; a run writes trainer_config.txt into --dir"
            )
        return from_debug_string(file.read_text())
    module_name, _, function = name.replace(":", ".").rpartition(".")
    if not module_name or Path(name).is_file():
        raise ConfigNotFound(
            f"{name}: expected the dotted name of a function that returns a trainer's config, "
            "e.g. my_module.config for my_module.py"
        )
    try:
        module = module_named(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise  # the module exists, and imports one that does not
        raise ConfigNotFound(f"{name}: there is no module {error.name!r}") from error
    config_fn = getattr(module, function, None)
    if not callable(config_fn):
        own_names = [
            k for k, v in vars(module).items() if getattr(v, "__module__", "") == module_name
        ]
        raise ConfigNotFound(
            f"{name}: {module_name} has no function {unknown_name(function, own_names)}"
        )
    try:
        inspect.signature(config_fn).bind()
    except TypeError as error:
        raise ConfigNotFound(
            f"{name}: expected a function without arguments that returns a trainer's config: "
            f"{error}. Name one that calls it."
        ) from error
    return config_fn()


def _find_config(name: str, folder: Path | None, overrides: Sequence[str]) -> "ConfigBase":
    """A trainer's config by its name, with its folder and other fields set."""
    from optax_bridge.spmd.config import ConfigBase, RequiredFieldValue, apply_overrides

    cfg: Any = _load_config(name)
    if not isinstance(cfg, ConfigBase) or "dir" not in cfg or "max_step" not in cfg:
        raise ConfigNotFound(
            f"{name}: expected the config of a trainer, SpmdTrainer.default_config().set(...), "
            f"found {type(cfg).__name__}"
        )
    if isinstance(cfg.name, RequiredFieldValue):
        cfg.set(name="trainer")
    cfg = apply_overrides(cfg, overrides, root=str(cfg.name))
    return cfg if folder is None else cfg.set(dir=str(folder))


def _make_trainer(cfg: "ConfigBase") -> "SpmdTrainer":
    """Returns the trainer of a config."""
    from optax_bridge.spmd.config import RequiredFieldValue

    if isinstance(cfg.dir, RequiredFieldValue):
        raise ConfigNotFound("trainer.dir is not set: say where the run's files go, --dir run")
    with _log_messages(plain_terminal(stderr=True)):
        return cfg.instantiate(parent=None)


def _connect(
    devices: int | None, coordinator: str | None, processes: int | None, process_id: int | None
) -> None:
    """Splits the CPU and connects the processes; keys whose numbers do not depend on the mesh."""
    import jax

    from optax_bridge.spmd.launch import setup

    if devices is not None:
        jax.config.update("jax_num_cpu_devices", devices)
    if coordinator is None and processes is None and process_id is None:
        return  # asking for the backend would start it, which comes after the connection
    setup(
        jax_backend=(getattr(jax.config, "jax_platforms", None) or "cpu").split(",")[0],
        distributed_coordinator=coordinator,
        num_processes=processes,
        process_id=process_id,
        prng_impl=getattr(jax.config, "jax_default_prng_impl"),  # noqa: B009
    )


def _run(trainer: "SpmdTrainer", seed: int, resume_from: int | None, shows_traceback: bool) -> int:
    """Runs a trainer, and says on the terminal how it goes."""
    import jax

    from optax_bridge.spmd.progress import LossLog, progress_line
    from optax_bridge.spmd.trainer import SavingError, UndefinedLossException

    console = plain_terminal(stderr=True)
    cfg = trainer.config
    is_first = jax.process_index() == 0
    received: list[int] = []
    log = LossLog(Path(cfg.dir))
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_signals(trainer.request_stop, received))
            if is_first:
                stack.enter_context(_log_messages(console))
                trainer.add_listener(stack.enter_context(log))
                trainer.add_listener(stack.enter_context(progress_line(console, cfg.max_step)))
            outputs = trainer.run(jax.random.PRNGKey(seed), restore_step=resume_from)
            if outputs is not None and trainer.stopped_at is None:
                trainer.save_checkpoint()  # without asking the policy: it is the result
    except Exception as error:
        ours = isinstance(error, UndefinedLossException | SavingError | ValueError | OSError)
        if shows_traceback or not (ours or user_frame(error)):
            raise
        if is_first:
            console.print(_message(error))
        return 1
    if not is_first:
        return 0 if trainer.stopped_at is None else 143
    if trainer.stopped_at is not None:
        command = shlex.join([Path(sys.argv[0]).name, *_without_resume_from(sys.argv[1:])])
        console.print(f"Stopped after step {trainer.stopped_at}, which is saved. To go on:")
        console.print(f"    {command}")
        return _SIGNALS[received[0]] if received else 143
    if outputs is None:
        if (trainer.step or 0) >= cfg.max_step:  # else the input ended, and that is said
            console.print(
                f"{cfg.dir} is at step {trainer.step} already, and max_step is {cfg.max_step}: "
                "nothing to do. To train on: "
                f"--set {cfg.name}.max_step={2 * (trainer.step or 1)}"
            )
        return 0
    _print_evaluations(console, trainer)
    console.print(f"Step {trainer.step}, loss {float(outputs['loss']):.4f}. Curve: {log.draw()}")
    console.print(f"More: tensorboard --logdir {shlex.quote(str(Path(cfg.dir) / 'summaries'))}")
    return 0


def _print_evaluations(console: Terminal, trainer: "SpmdTrainer") -> None:
    """Prints the scalars of each evaler's last run."""
    import numpy as np

    from optax_bridge.spmd.summaries import host_values

    for name, evaler in trainer.evalers.items():
        if evaler.latest is not None:
            step, summaries = evaler.latest
            flat = {key: x for key, x in summaries.items() if not isinstance(x, dict)}
            scalars = [(key, x) for key, x in host_values(flat) if np.ndim(x) == 0]
            shown = ", ".join(f"{key} {float(x):.4f}" for key, x in scalars)
            console.print(f"{name}, at step {step}: {shown}")


def _without_resume_from(arguments: Sequence[str]) -> list[str]:
    """Returns arguments that go on from the newest checkpoint, whichever one it was before."""
    remaining, skips = [], False
    for argument in arguments:
        if not skips and not argument.startswith("--resume-from="):
            skips = argument == "--resume-from"
            remaining += [] if skips else [argument]
        else:
            skips = False
    return remaining


@contextlib.contextmanager
def _log_messages(console: Terminal) -> Iterator[None]:
    """Prints the trainer's warnings as lines of the terminal."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            console.print(f"{record.levelname.lower()}: {record.getMessage()}")

    ours, handler = logging.getLogger("optax_bridge.spmd"), Handler(logging.WARNING)
    ours.addHandler(handler)
    ours.propagate = False
    # Orbax logs, with a traceback, the errors that it raises; a loss that is NaN stops the run.
    others = {name: logging.getLogger(name) for name in ("absl", "tensorboardX")}
    before = {name: logger.level for name, logger in others.items()}
    for logger in others.values():
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.propagate = True
        for name, logger in others.items():
            logger.setLevel(before[name])


@contextlib.contextmanager
def _signals(request_stop: Callable[[], None], received: list[int]) -> Iterator[None]:
    """Ctrl-C and SIGTERM request a stop; a second one has its usual effect."""
    import jax

    def handle(number: int, frame: object) -> None:
        del frame
        received.append(number)
        signal.signal(number, before[number])
        if jax.process_count() > 1:  # JAX agrees with the other processes on a step
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            request_stop()

    # With several processes SIGTERM is JAX's own.
    wanted = _SIGNALS if jax.process_count() == 1 else [signal.SIGINT]
    before = {number: signal.signal(number, handle) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _message(error: BaseException) -> str:
    """An error with the line of the user's program that it comes from, and its notes."""
    notes = [n for n in getattr(error, "__notes__", ()) if "JAX_TRACEBACK_FILTERING" not in n]
    frame, kind = user_frame(error), "" if isinstance(error, ValueError) else type(error).__name__
    text = ": ".join(filter(None, ["error", kind, str(error)]))
    if frame is not None:
        place = f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
        text += f" ({place}; --traceback prints the whole)"
    return "\n".join([text, *notes])

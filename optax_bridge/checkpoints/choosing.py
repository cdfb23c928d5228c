"""Which optimizer of a checkpoint, or which `TrainState`, where there are several."""

from collections.abc import Iterable, Mapping

from optax_bridge.checkpoints.errors import CheckpointError, Place, shown
from optax_bridge.checkpoints.recognise import Names, Part, find_parts, find_states
from optax_bridge.metadata.trees import PyTree


def choose_part(tree: PyTree, place: Place, name: str | None = None) -> Part:
    """The optimizer to convert.

    Args:
      tree: the checkpoint.
      place: how errors call it.
      name: its path, `models/generator`; None if there is only one.

    Raises:
      CheckpointError: there is none, or none of that name, or several and no name is given.
    """
    parts = find_parts(tree, place)
    fitting = [part for part in parts if name is None or part.name == name.strip("/")]
    if len(fitting) == 1:
        return fitting[0]
    if not parts and any(True for _ in find_states(tree)):
        raise CheckpointError(
            place, "an optimizer of flax.optim", "a TrainState, which is converted already",
            "Restore it with Orbax; --to legacy converts it back.",
        )  # fmt: skip
    if not parts:
        names = shown(sorted(tree)) if isinstance(tree, Mapping) else shown(tree)
        raise CheckpointError(
            place, "an optimizer: {'target', 'state': {'step', 'param_states'}}", names,
            "A file of parameters alone has no state to convert, and bytes within one are not "
            "looked into; `optax-bridge inspect` lists it.",
        )  # fmt: skip
    raise CheckpointError(
        place, "one optimizer to convert" if name is None else f"an optimizer at {name!r}",
        f"{', '.join(part.name or '(the whole)' for part in parts)}",
        "Name one: --part NAME, or part= in Python; or convert each where it stands: "
        '--optimizer "NAME=Adam(...)" for every one.',
    )  # fmt: skip


def named(paths: Iterable[Names], part: str | None) -> list[Names]:
    """The paths that a user means by `part`; all of them if it is None."""
    name = part and part.strip("/")
    return [path for path in paths if not name or not path or name == "/".join(path)]

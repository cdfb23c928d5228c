"""What `convert` and `inspect` do with checkpoints of PyTorch."""

import warnings
from collections.abc import Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optax_bridge.checkpoints.read import Read
    from optax_bridge.torch.checkpoints.files import Returned


def misuse(
    to_torch: bool,
    like: str | None,
    optimizers: Sequence[str] | None,
    options: Mapping[str, Any],
    torch_options: Mapping[str, Any],
) -> str:
    """Says which options do not go together; "" if all do."""
    names, step, base = (torch_options[name] for name in ("names", "step", "base"))
    if to_torch and (like is None or names is None or base is None):
        return (
            "--to torch needs --like, which makes the state, --names, which says where each array "
            "goes, and --base, a checkpoint of the PyTorch program"
        )
    if base is not None and not to_torch:
        return "--base is for --to torch: leave it out"
    if step is not None and (to_torch or names is None):
        return "--step is for a checkpoint of PyTorch that does not say it: leave it out"
    others = optimizers or options["part"] or options["layout"] != "keep"
    if names is not None and (others or options["to_legacy"]):
        return (
            "--names is for a checkpoint of PyTorch, which --like says everything else of: leave "
            "--optimizer, --part, --layout flat and --to legacy out"
        )
    return ""


def returned(
    source: Path,
    destination: Path,
    template: Any,
    options: Mapping[str, Any],
    torch_options: Mapping[str, Any],
) -> "Returned | str":
    """Writes a file of PyTorch; returns what was done, or why it could not be."""
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.torch.checkpoints.files import to_torch_file

    warnings.simplefilter("ignore", DeprecationWarning)
    try:
        return to_torch_file(
            source,
            destination,
            like=template,
            names=torch_options["names"],
            base=torch_options["base"],
            allow_nan=options["allow_nan"],
            force=options["force"],
        )
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{destination}: {error}"


def report_returned(done: "Returned", destination: Path, base: Path | None, json: bool) -> None:
    """Prints what was done, as a line or as JSON, and what is left to a person."""
    from optax_bridge.cli.terminal import plain_terminal

    if json:
        print(dumps({
            "source": str(done.read.path), "format": done.read.description,
            "destination": str(destination), "step": done.step, "arrays": done.arrays,
            "bytes": done.nbytes, "verified": True, "unchanged": list(done.unchanged),
        }))  # fmt: skip
        return
    plain_terminal().print(
        f"{done.read.path} ({done.read.description}) -> {destination}: step {done.step}, "
        f"{done.arrays} arrays, {done.nbytes:,} bytes, read again and compared"
    )
    kept = ", ".join(["the groups' settings, lr among them", *done.unchanged])
    plain_terminal(stderr=True).print(f"note: as {base} has them: {kept}")


def torch_lines(read: "Read", part: str | None) -> list[str]:
    """The lines of `inspect` on a file of PyTorch."""
    from optax_bridge.torch.checkpoints.files import described

    return list(described(read, *_parts(part)))


def draft(read: "Read", template: Any, part: str | None) -> str:
    """The draft of a names file for a checkpoint of PyTorch.

    Raises:
      CheckpointError: it is none; or several models are in it and `part` names none.
    """
    from optax_bridge.checkpoints.errors import CheckpointError
    from optax_bridge.torch.checkpoints.draft import draft_names
    from optax_bridge.torch.checkpoints.files import is_torch
    from optax_bridge.torch.checkpoints.layout import torch_checkpoint

    if not is_torch(read):
        raise CheckpointError(
            read.path, "a checkpoint of PyTorch", read.description, "Others need no names."
        )
    checkpoint = torch_checkpoint(read.tree, read.path, *_parts(part))
    return draft_names(checkpoint, template, is_one_of_several=part is not None)


def _parts(part: str | None) -> tuple[str | None, str | None]:
    """The model and the optimizer of `--part MODEL,OPTIMIZER`, of which either may be empty."""
    model, _, optimizer = (part or "").partition(",")
    return model or None, optimizer or None

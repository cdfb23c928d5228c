"""`convert` and `inspect` for checkpoints of PyTorch."""

from json import dumps
from typing import TYPE_CHECKING

from optax_bridge._text import listing
from optax_bridge.cli.options import ConvertOptions, Layout, Target

if TYPE_CHECKING:
    from optax_bridge.checkpoints.read import Read
    from optax_bridge.metadata.trees import PyTree
    from optax_bridge.torch.checkpoints.files import Returned


def misuse(options: ConvertOptions) -> str:
    """Says which options cannot be combined; "" if all can."""
    from optax_bridge.checkpoints.formats.pytorch import SUFFIXES

    back, legacy = options.to is Target.TORCH, options.to is Target.LEGACY
    if back and None in (options.like, options.names, options.base):
        return (
            "--to torch needs --like, which makes the state, --names, which maps the arrays, and "
            "--base, a checkpoint of the PyTorch program"
        )
    if not back and options.destination.suffix in SUFFIXES:
        return (
            f"{options.destination} has the suffix of a PyTorch file: --to torch writes one, as "
            f"{options.destination.with_suffix('.pt')}, with --like, --names and --base. Give any "
            "other file another name"
        )
    if options.base is not None and not back:
        return "--base is only for --to torch: leave it out"
    if options.step is not None and (back or options.names is None):
        return "--step is only for a checkpoint of PyTorch that lacks the step: leave it out"
    if options.names is not None and options.like is None and not options.params_only:
        return "--names needs --like, the template of the new state, or --params-only"
    others = options.optimizers or options.part or options.layout is Layout.FLAT or legacy
    if options.names is not None and others:
        return (
            "--names is for a checkpoint of PyTorch, where --like decides the rest: leave out "
            "--optimizer, --part, --layout flat and --to legacy"
        )
    return ""


def write_back(options: ConvertOptions, template: "PyTree") -> "Returned":
    """Writes a file of PyTorch; `misuse` has checked the options."""
    from optax_bridge.torch.checkpoints.files import to_torch_file

    assert options.names is not None and options.base is not None
    return to_torch_file(
        options.source, options.destination, like=template, names=options.names,
        base=options.base, allow_nan=options.allow_nan, force=options.force,
    )  # fmt: skip


def report_returned(done: "Returned", options: ConvertOptions) -> None:
    """Prints the result, as a line or as JSON, and the steps that are left to do by hand."""
    from optax_bridge.cli.terminal import plain_terminal

    if options.json:
        print(dumps({
            "source": str(done.read.path), "format": done.read.description,
            "destination": str(options.destination), "step": done.step, "arrays": done.arrays,
            "bytes": done.nbytes, "verified": True, "unchanged": [*done.entries, *done.tensors],
        }))  # fmt: skip
        return
    plain_terminal().print(
        f"{done.read.path} ({done.read.description}) -> {options.destination}: step {done.step}, "
        f"{done.arrays} arrays, {done.nbytes:,} bytes, read again and compared"
    )
    entries = [f"{n} = {v}" if isinstance(v, int | float) else n for n, v in done.entries.items()]
    unchanged = listing(["the groups' settings, lr among them", *done.tensors])
    errors = plain_terminal(stderr=True)
    if entries:
        errors.print(f"note: set by your program, still as in {options.base}: {listing(entries)}")
    errors.print(f"note: as {options.base} has them: {unchanged}")


def torch_lines(read: "Read", part: str | None) -> list[str]:
    """The lines of `inspect` on a file of PyTorch."""
    from optax_bridge.torch.checkpoints.files import description_of

    return list(description_of(read, *_parts(part)))


def draft(read: "Read", template: "PyTree", part: str | None) -> str:
    """The draft of a names file for a checkpoint of PyTorch."""
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

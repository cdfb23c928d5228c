"""`names.toml`: where each tensor of PyTorch goes in Flax, and how it lies there.

    drop = ["*.num_batches_tracked"]

    [names]
    "fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }
    "fc.bias" = "params/fc/bias"
    "in_proj_bias" = { to = ["params/q/bias", "params/k/bias"], as = "(n d) -> n d" }

The first name of a path is the collection. A list in `to` takes the array apart along its new first
axis. `model`, `optimizer` and `order` say of the file what it does not.
"""

import fnmatch
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from optax_bridge._text import brief, did_you_mean, listing
from optax_bridge.checkpoints.errors import CheckpointError, Place
from optax_bridge.metadata.paths import Names, leaf_name
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.rearrangement import Rearrangement

UNSURE, UNSURE_ORDER = "unsure", "unsure_order"
_KEYS = ("model", "optimizer", "drop", "order", UNSURE_ORDER, "names")
_SYNTAX = 'names.toml of this form: "fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }'
_SEE = "`optax-bridge inspect FILE --names` writes a draft."
MEND = "Mend the line in the names file."


@dataclass(frozen=True)
class Rule:
    """The destination of one tensor."""

    place: str
    name: str
    paths: tuple[Names, ...]
    rearrangement: Rearrangement | None

    def layouts(self) -> dict[Names, Rearrangement | None]:
        """The layouts of the arrays made from the tensor, by path."""
        if len(self.paths) == 1:
            return {self.paths[0]: self.rearrangement}
        rearrangement = self.rearrangement or Rearrangement((), (), {})
        return {path: replace(rearrangement, index=index) for index, path in enumerate(self.paths)}

    def requirement(self, shape: Sequence[int]) -> str:
        """The requirement of the rule that a tensor of this shape does not meet; "" if it does."""
        try:
            new_shape = self.rearrangement.shape(shape) if self.rearrangement else tuple(shape)
        except ValueError as error:
            return str(error)
        if len(self.paths) > 1 and new_shape[:1] != (len(self.paths),):
            return f"a first axis of {len(self.paths)}, as there are paths"
        return ""

    def to_flax(self, array: np.ndarray) -> dict[Names, np.ndarray]:
        """The arrays of Flax, by path."""
        if requirement := self.requirement(array.shape):
            raise CheckpointError(self.place, requirement, described(array), MEND)
        layouts = self.layouts().items()
        return {path: array if layout is None else layout(array) for path, layout in layouts}


def described(array: np.ndarray) -> str:
    """The dtype and the shape of an array."""
    return f"{array.dtype}{list(array.shape)}"


@dataclass(frozen=True)
class NamesFile:
    """The content of `names.toml`."""

    path: Place
    model: str | None
    optimizer: str | None
    drop: Sequence[str]
    order: Sequence[str] | None
    entries: Mapping[str, PyTree]

    def rules(self, names: Sequence[str]) -> list[Rule]:
        """The rules for the tensors of a model, whose names these are."""
        drafts = [k for k, e in self.entries.items() if isinstance(e, dict) and UNSURE in e]
        dropped = {n for n in names if any(fnmatch.fnmatchcase(n, each) for each in self.drop)}
        remaining = [name for name in names if name not in dropped and name not in self.entries]
        unknown = [name for name in self.entries if name not in names]
        rules = [self._rule(name, entry) for name, entry in self.entries.items()]
        paths = ["/".join(path) for rule in rules for path in rule.paths]
        twice = [path for path in dict.fromkeys(paths) if paths.count(path) > 1]
        both = sorted(dropped & {*self.entries})
        near = did_you_mean(unknown[0], names) if unknown else ""
        for expected, found, wrong, remedy in (
            ("what a person has decided", "", drafts, f"Look at each, take out `{UNSURE} = ...`."),
            ("a line for each tensor, or `drop`", "none for ", remaining, f"Add it. {_SEE}"),
            ("tensors of the model", "no ", unknown, f"Leave the lines out{near or '.'}"),
            ("each path once", "", twice, "Leave one of the lines out."),
            ("no line for what is dropped", "", both, "Leave one out."),
        ):
            if wrong:
                raise CheckpointError(self.path, expected, found + listing(wrong), remedy)
        return rules

    def _rule(self, name: str, entry: PyTree) -> Rule:
        place = f"{self.path}, {leaf_name((name,))}"
        fields = entry if isinstance(entry, Mapping) else {"to": entry}
        targets = fields.get("to")
        targets = [targets] if isinstance(targets, str) else targets
        sizes = {n: v for n, v in fields.items() if n not in ("to", "as", UNSURE)}
        text = fields.get("as")
        are_sizes = all(type(size) is int and size > 0 for size in sizes.values())
        are_paths = isinstance(targets, list) and targets and all(map(_is_path, targets))
        is_text = isinstance(text, str if sizes else str | None)
        if not (targets and are_paths and are_sizes and is_text):
            raise CheckpointError(place, _SYNTAX, brief(entry), MEND)
        paths = tuple(tuple(target.split("/")) for target in targets)
        if text is None:
            return Rule(place, name, paths, None)
        if len(paths) > 1 and text.partition("->")[2].split()[:1] == ["n"]:
            sizes.setdefault("n", len(paths))
        try:
            return Rule(place, name, paths, Rearrangement.parse(text, sizes))
        except ValueError as error:
            raise CheckpointError(place, str(error), brief(text), MEND) from None


def read_names(path: Path | str | Mapping[str, PyTree]) -> NamesFile:
    """Reads a names file, or nested dicts as it would have them."""
    if isinstance(path, Mapping):
        return parse_names(path, "names")
    try:
        tree = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        what = brief(error.strerror or str(error))
        raise CheckpointError(path, "a names file", what, _SEE) from None
    except ValueError as error:
        raise CheckpointError(path, "TOML", brief(str(error), 200), MEND) from None
    return parse_names(tree, path)


def parse_names(tree: Mapping[str, PyTree], place: Place) -> NamesFile:
    """The names that nested dicts say, as a names file has them."""
    unknown = [key for key in tree if key not in _KEYS]
    model, optimizer = (tree.get(key) for key in ("model", "optimizer"))
    drop, order, entries = tree.get("drop", []), tree.get("order"), tree.get("names")
    are_lists = all(
        isinstance(each, list) and all(isinstance(text, str) for text in each)
        for each in (drop, order or [])
    )
    are_texts = isinstance(model, str | None) and isinstance(optimizer, str | None)
    if unknown or not are_lists or not are_texts or not isinstance(entries, Mapping):
        what = f"{unknown[0]!r}{did_you_mean(unknown[0], _KEYS)}" if unknown else brief(dict(tree))
        expected = "model, optimizer, drop, order and [names]"
        raise CheckpointError(place, expected, what, f"Write {_SYNTAX}")
    if UNSURE_ORDER in tree:
        raise CheckpointError(
            f"{place}, order", "what a person has decided", f"a draft: {brief(tree[UNSURE_ORDER])}",
            "List the parameters as the optimizer was given them, group after group, and take out "
            f"`{UNSURE_ORDER}`.",
        )  # fmt: skip
    return NamesFile(place, model, optimizer, drop, order, entries)


def _is_path(target: object) -> bool:
    return isinstance(target, str) and "/" in target and all(target.split("/"))

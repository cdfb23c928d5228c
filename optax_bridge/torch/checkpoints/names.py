"""`names.toml`: where each tensor of PyTorch goes in Flax, and how it lies there.

    drop = ["*.num_batches_tracked"]

    [names]
    "fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }
    "fc.bias" = "params/fc/bias"
    "bn.running_mean" = "batch_stats/bn/mean"
    "in_proj_bias" = { to = ["params/q/bias", "params/k/bias"], as = "(n d) -> n d" }
    "layers.*.fc.weight" = { to = "params/layers_*/fc/kernel", as = "o i -> i o" }

The first name of a path is the collection. A list in `to` takes the array apart along its new first
axis. A `*` on both sides stands for the same number; on the left alone, the numbered tensors are
stacked along a new first axis. `model`, `optimizer` and `order` say of the file what it does not.
"""

import fnmatch
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optax_bridge._text import did_you_mean, listed, shown
from optax_bridge.checkpoints.errors import CheckpointError, leaf_name
from optax_bridge.checkpoints.trees import Names
from optax_bridge.torch.checkpoints.rearrangement import Rearrangement

_KEYS = ("model", "optimizer", "drop", "order", "unsure_order", "names")
_SYNTAX = 'names.toml of this form: "fc.weight" = { to = "params/fc/kernel", as = "o i -> i o" }'
_SEE = "`optax-bridge inspect FILE --names` writes a draft."
UNSURE, UNSURE_ORDER = "unsure", "unsure_order"


@dataclass(frozen=True)
class Rule:
    """Where one tensor goes, or several that become one, or one that becomes several.

    Attributes:
      place: how errors call it.
      torch: names of PyTorch; several are stacked.
      flax: paths, from the collection on; several are slices.
      rearrangement: how it lies in Flax; None: as in PyTorch.
    """

    place: str
    torch: tuple[str, ...]
    flax: tuple[Names, ...]
    rearrangement: Rearrangement | None

    def to_flax(self, arrays: Sequence[np.ndarray]) -> dict[Names, np.ndarray]:
        """The arrays of Flax, by path.

        Raises:
          CheckpointError: they have other shapes than the rule says.
        """
        self._check_same(arrays)
        array = np.stack(arrays) if self._is_stacked else arrays[0]
        array = self._rearranged(array, backwards=False)
        if len(self.flax) == 1:
            return {self.flax[0]: array}
        if array.shape[:1] != (len(self.flax),):
            raise self._error(f"a first axis of {len(self.flax)}, as there are paths", array)
        return dict(zip(self.flax, array, strict=True))

    def to_torch(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of PyTorch, by name; the inverse of `to_flax`.

        Raises:
          CheckpointError: they have other shapes than the rule says.
        """
        self._check_same(arrays)
        array = np.stack(arrays) if len(self.flax) > 1 else np.asarray(arrays[0])
        array = self._rearranged(array, backwards=True)
        if not self._is_stacked:
            return {self.torch[0]: array}
        if array.shape[:1] != (len(self.torch),):
            raise self._error(f"a first axis of {len(self.torch)}, as there are names", array)
        return dict(zip(self.torch, array, strict=True))

    @property
    def _is_stacked(self) -> bool:
        return len(self.torch) > 1

    def _check_same(self, arrays: Sequence[np.ndarray]) -> None:
        kinds = {(array.shape, array.dtype) for array in arrays}
        if len(kinds) > 1:
            raise self._error(f"one shape and type, found {shown(sorted(map(str, kinds)))}")

    def _rearranged(self, array: np.ndarray, backwards: bool) -> np.ndarray:
        if self.rearrangement is None:
            return array
        try:
            return self.rearrangement.inverse(array) if backwards else self.rearrangement(array)
        except ValueError as error:
            raise self._error(str(error), array) from None

    def _error(self, expected: str, array: np.ndarray | None = None) -> CheckpointError:
        actual = "others" if array is None else f"{array.dtype}{list(array.shape)}"
        return CheckpointError(self.place, expected, actual, "Mend the line in the names file.")


@dataclass(frozen=True)
class NamesFile:
    """The content of `names.toml`.

    Attributes:
      path: the file.
      model: the model's path in the file of PyTorch, where it has several.
      optimizer: the optimizer's.
      drop: patterns of names that have no equal in Flax.
      order: names as the optimizer was given them; None if the file tells.
      entries: as they stand below `names`.
    """

    path: Path | str
    model: str | None
    optimizer: str | None
    drop: Sequence[str]
    order: Sequence[str] | None
    entries: Mapping[str, Any]

    def rules(self, names: Sequence[str]) -> list[Rule]:
        """The rules for the tensors of a model.

        Args:
          names: all of them.

        Raises:
          CheckpointError: a name is in no rule, or in two; or a rule is about none; or two go to
            one place.
        """
        drafts = [
            key
            for key, entry in self.entries.items()
            if isinstance(entry, dict) and UNSURE in entry
        ]
        if drafts:
            raise CheckpointError(
                self.path, "what a person has decided", f"drafts: {listed(drafts)}",
                f"Look where each of these goes, and take out `{UNSURE} = ...`.",
            )  # fmt: skip
        rules = [
            rule for key, entry in self.entries.items() for rule in self._rules(key, entry, names)
        ]
        taken = [name for rule in rules for name in rule.torch]
        dropped = {
            n for n in names if any(fnmatch.fnmatchcase(n, pattern) for pattern in self.drop)
        }
        remaining = [name for name in names if name not in dropped and name not in taken]
        if remaining:
            raise CheckpointError(
                self.path, "a line for each tensor of the model", f"none for {listed(remaining)}",
                f"Say where they go, or list what Flax lacks: drop = [\"...\"]. {_SEE}",
            )  # fmt: skip
        for what, used in (("tensor", taken), ("path", [p for rule in rules for p in rule.flax])):
            twice = [each for each in dict.fromkeys(used) if used.count(each) > 1]
            if twice or (what == "tensor" and dropped.intersection(taken)):
                named = [each if isinstance(each, str) else "/".join(each) for each in twice]
                raise CheckpointError(
                    self.path, f"each {what} once", listed(named or sorted(dropped & {*taken})),
                    "Leave one of the lines out.",
                )  # fmt: skip
        return rules

    def _rules(self, key: str, entry: Any, names: Sequence[str]) -> Iterator[Rule]:
        place = f"{self.path}, {leaf_name((key,))}"
        fields = {"to": entry} if isinstance(entry, str | list) else entry
        targets = fields.get("to") if isinstance(fields, Mapping) else None
        targets = [targets] if isinstance(targets, str) else targets
        if not isinstance(targets, list) or not targets or not all(map(_is_path, targets)):
            raise CheckpointError(place, _SYNTAX, shown(entry), "Mend the line.")
        sizes = {n: v for n, v in fields.items() if n not in ("to", "as")}
        if len(targets) > 1 and "n" in str(fields.get("as")).replace("->", " ").split():
            sizes.setdefault("n", len(targets))
        rearrangement = self._rearrangement(place, fields.get("as"), sizes, entry)
        pattern = re.compile(re.escape(key).replace(r"\*", r"(\d+)"))
        matches = [match for match in map(pattern.fullmatch, names) if match]
        if not matches:
            raise CheckpointError(
                place, "a tensor of the model", f"none of that name{did_you_mean(key, names)}",
                "Leave the line out, or mend its name.",
            )  # fmt: skip
        if "*" in key and not any("*" in target for target in targets):
            matches.sort(key=lambda match: [*map(int, match.groups())])
            paths = tuple(tuple(target.split("/")) for target in targets)
            yield Rule(place, tuple(match[0] for match in matches), paths, rearrangement)
            return
        for match in matches:
            paths = tuple(tuple(_numbered(t, match.groups()).split("/")) for t in targets)
            yield Rule(place, (match[0],), paths, rearrangement)

    def _rearrangement(
        self, place: str, text: Any, sizes: Mapping[str, Any], entry: Any
    ) -> Rearrangement | None:
        are_sizes = all(type(size) is int and size > 0 for size in sizes.values())
        if not are_sizes or not isinstance(text, str | None) or (text is None and sizes):
            raise CheckpointError(place, _SYNTAX, shown(entry), "Mend the line.")
        try:
            return None if text is None else Rearrangement.parse(text, sizes)
        except ValueError as error:
            raise CheckpointError(place, str(error), shown(text), "Mend the line.") from None


def read_names(path: Path | str) -> NamesFile:
    """Reads a names file.

    Raises:
      CheckpointError: there is none, or it is no such file.
    """
    try:
        return parse_names(tomllib.loads(Path(path).read_text(encoding="utf-8")), path)
    except OSError as error:
        raise CheckpointError(
            path, "a names file", shown(error.strerror or str(error)), _SEE
        ) from None
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(path, "TOML", shown(str(error), 200), "Mend the line.") from None


def parse_names(tree: Mapping[str, Any], place: Path | str) -> NamesFile:
    """The names that nested dicts say, as a names file has them.

    Raises:
      CheckpointError: they say something else, or what no person has decided.
    """
    unknown = [key for key in tree if key not in _KEYS]
    texts = [tree.get(key) for key in ("model", "optimizer")]
    lists = [tree.get(key, []) for key in ("drop", "order")]
    entries = tree.get("names")
    are_texts = all(isinstance(text, str | None) for text in texts) and all(
        isinstance(each, list) and all(isinstance(text, str) for text in each) for each in lists
    )
    if unknown or not are_texts or not isinstance(entries, Mapping):
        what = f"{unknown[0]!r}{did_you_mean(unknown[0], _KEYS)}" if unknown else shown(dict(tree))
        raise CheckpointError(
            place, f"{', '.join(_KEYS[:4])} and [names]", what, f"Write it so: {_SYNTAX}"
        )
    if UNSURE_ORDER in tree:
        raise CheckpointError(
            f"{place}, order", "what a person has decided", f"a draft: {shown(tree[UNSURE_ORDER])}",
            "List the parameters as the optimizer was given them, group after group, and take out "
            f"`{UNSURE_ORDER}`.",
        )  # fmt: skip
    order = tree.get("order")
    return NamesFile(place, *texts, tree.get("drop", []), order, entries)


def _is_path(target: Any) -> bool:
    return isinstance(target, str) and len(target.split("/")) > 1 and all(target.split("/"))


def _numbered(target: str, numbers: Sequence[str]) -> str:
    """A path with the numbers in place of its stars."""
    waiting = list(numbers)
    return re.sub(r"\*", lambda _: waiting.pop(0) if waiting else "*", target)

"""Drafts `names.toml` from the names and shapes of a file of PyTorch and those of a Flax state.

What names or shapes do not settle is proposed with `unsure`, which `convert` refuses until a person
has looked and taken it out.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

import numpy as np
from flax import serialization

from optax_bridge.checkpoints.trees import fields_of, is_array, is_floating, plain
from optax_bridge.metadata.paths import Names, leaves
from optax_bridge.metadata.trees import PyTree
from optax_bridge.torch.checkpoints.layout import TorchCheckpoint
from optax_bridge.torch.checkpoints.moves import PARAMS, state_in
from optax_bridge.torch.checkpoints.names import UNSURE, UNSURE_ORDER

# PyTorch's name of an array -> what Flax's modules call the same.
_KINDS = {
    "weight": ("kernel", "embedding", "scale"),
    "running_mean": ("mean",),
    "running_var": ("var",),
}
_PARTS = (("query", "key", "value"), ("q", "k", "v"), ("q_proj", "k_proj", "v_proj"))
_COUNTER = "num_batches_tracked"
_FLATTENED = (
    "PyTorch flattens channels first, Flax last: right if a flatten stands before it, else "
    "'o i -> i o'"
)
_FLIPPED = "a transposed convolution of Flax has its kernel the other way round, which no line says"


@dataclass(frozen=True)
class _Tensor:
    """A tensor of PyTorch, the modules on the way to it, and its name there."""

    name: str
    module: Names
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Target:
    """An array of Flax, or the three of queries, keys and values."""

    paths: tuple[Names, ...]
    module: Names
    kind: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class _Line:
    """A line of the draft."""

    target: _Target
    rearrangement: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    unsure: str = ""

    def text(self, name: str) -> str:
        """The line as TOML."""
        paths = ["/".join(path) for path in self.target.paths]
        to = json.dumps(paths if len(paths) > 1 else paths[0])
        parts = [f"to = {to}"]
        parts += [f"as = {json.dumps(self.rearrangement)}"] if self.rearrangement else []
        parts += [f"{axis} = {size}" for axis, size in self.sizes.items()]
        parts += [f"{UNSURE} = {json.dumps(self.unsure)}"] if self.unsure else []
        value = to if len(parts) == 1 else f"{{ {', '.join(parts)} }}"
        return f"{json.dumps(name)} = {value}"


def draft_names(
    checkpoint: TorchCheckpoint, like: PyTree, *, is_one_of_several: bool = False
) -> str:
    """The draft of a names file."""
    targets = list(_targets(state_in(like, "--like")))
    has_counter = any(name.endswith(_COUNTER) for name in checkpoint.tensors)
    drop = [f"*{_COUNTER}"] * has_counter + [*checkpoint.tied]
    tensors = [
        _Tensor(name, (*name.split("."),)[:-1], name.rpartition(".")[2], tensor.shape)
        for name, tensor in checkpoint.tensors.items()
        if name not in checkpoint.tied and not name.endswith(_COUNTER)
    ]
    lines = _check_kernels(_match(tensors, targets), tensors)
    used = {path for line in lines.values() for path in line.target.paths}
    text = [f"# Where each tensor of {checkpoint.place} goes."]
    if count := sum(bool(line.unsure) for line in lines.values()):
        text.append(f"# Lines with `{UNSURE}`, {count} of them: look at each, and take it out.")
    for what, path in (("model", checkpoint.model), ("optimizer", checkpoint.optimizer)):
        text += [f"{what} = {json.dumps('/'.join(path))}"] if is_one_of_several and path else []
    text += [f"drop = {json.dumps(drop)}"] if drop else []
    order = checkpoint.order() if checkpoint.is_stepped else None
    if order is not None and order.doubt:
        names = [order.name(index) for index in checkpoint.indices]
        text += [f"order = {json.dumps(names)}", f"{UNSURE_ORDER} = {json.dumps(order.doubt)}"]
    text += ["", "[names]"]
    text += [lines[t.name].text(t.name) for t in tensors if t.name in lines]
    unmatched = [
        f"# {json.dumps(t.name)} {list(t.shape)}: nothing in Flax for it"
        for t in tensors
        if t.name not in lines
    ] + [
        f"# {'/'.join(t.paths[0])} {list(t.shape)}: nothing in PyTorch for it"
        for t in targets
        if len(t.paths) == 1 and t.paths[0] not in used
    ]
    return "\n".join([*text, *[""] * bool(unmatched), *unmatched, ""])


def _targets(state: PyTree) -> Iterator[_Target]:
    """The arrays of a state in floating point, and the threes of them that attention has."""
    by_module: dict[tuple[Names, str], dict[str, _Target]] = {}
    for name in fields_of(state):
        if name in ("step", "opt_state"):
            continue
        for path, leaf in leaves(plain(serialization.to_state_dict(getattr(state, name)))):
            if path and is_array(leaf) and is_floating(leaf.dtype):
                target = _Target(((name, *path),), path[:-1], path[-1], np.shape(leaf))
                yield target
                if len(path) > 2 and name == PARAMS:
                    by_module.setdefault((path[:-2], path[-1]), {})[path[-2]] = target
    for (module, kind), parts in by_module.items():
        for names in _PARTS:
            three = [parts[name] for name in names if name in parts]
            if len(three) == 3 and len({target.shape for target in three}) == 1:
                paths = tuple(target.paths[0] for target in three)
                kind_there = {"kernel": "in_proj_weight", "bias": "in_proj_bias"}.get(kind, "")
                yield _Target(paths, module, kind_there, three[0].shape)


def _match(tensors: Sequence[_Tensor], targets: Sequence[_Target]) -> dict[str, _Line]:
    """A line for each tensor that fits something: by name, by shape where one fits, by order."""
    lines: dict[str, _Line] = {}
    modules: dict[Names, Names] = {}  # module of PyTorch -> that of Flax
    shared = (_shared([t.module for t in tensors]), _shared([t.module for t in targets]))
    fitting = {
        tensor.name: [line for target in targets if (line := _fit(tensor, target))]
        for tensor in tensors
    }

    def options(tensor: _Tensor) -> list[_Line]:
        used = {path for line in lines.values() for path in line.target.paths}
        free = [line for line in fitting[tensor.name] if not used.intersection(line.target.paths)]
        in_same_module = [line for line in free if line.target.module == modules.get(tensor.module)]
        return in_same_module or free

    def take(tensor: _Tensor, line: _Line) -> None:
        lines[tensor.name] = line
        modules.setdefault(tensor.module, line.target.module)

    for tensor in tensors:
        same = [line for line in options(tensor) if _same_name(tensor, line.target, shared)]
        if len(same) == 1:
            take(tensor, same[0])
    while True:
        choices = {tensor.name: options(tensor) for tensor in tensors if tensor.name not in lines}
        some = (tensor for tensor in tensors if choices.get(tensor.name))
        sole = next((tensor for tensor in some if not _doubt(tensor, choices)), None)
        if sole is None:
            break
        take(sole, choices[sole.name][0])
    for tensor in tensors:
        if tensor.name not in lines and (free := options(tensor)):
            doubt = _doubt(tensor, choices)
            line = min(free, key=lambda each: _unlikeness(tensor, each.target, shared))
            take(tensor, replace(line, unsure=doubt))
    return lines


def _doubt(tensor: _Tensor, choices: Mapping[str, Sequence[_Line]]) -> str:
    """The other places and tensors that fit; "" if a tensor fits one place, and no other there."""
    places = len(choices[tensor.name])
    paths = {path for line in choices[tensor.name] for path in line.target.paths}
    others = [line for name, lines in choices.items() if name != tensor.name for line in lines]
    has_rivals = any(paths.intersection(line.target.paths) for line in others)
    if places == 1 and not has_rivals:
        return ""
    return f"fits {places} place{'s' * (places > 1)}{', as others do' * has_rivals}"


def _shared(modules: Sequence[Names]) -> int:
    """The number of names that all modules begin with, such as Lightning's `model`."""
    levels = zip(*modules, strict=False)
    return len([*itertools.takewhile(lambda names: len({*names}) == 1, levels)])


def _unlikeness(
    tensor: _Tensor, target: _Target, shared: tuple[int, int]
) -> tuple[float, list[list[int | str]]]:
    """Least for the most similar name but for numbers, and of such for the first in number."""
    one, other = (
        re.sub(r"\d", "", _letters(names[count:]))
        for names, count in zip((tensor.module, target.module), shared, strict=True)
    )
    numbers = [
        [int(text) if text.isdecimal() else text for text in re.split(r"(\d+)", name)]
        for name in target.module
    ]
    return -round(SequenceMatcher(None, one, other).ratio(), 2), numbers


def _same_name(tensor: _Tensor, target: _Target, shared: tuple[int, int]) -> bool:
    """True if the modules have the same name but for separators: layers.0.fc and layers_0/fc."""
    suffix = "proj" if target.module[-1:] == ("out",) else ""  # as Flax calls it in an attention
    return any(
        _letters(tensor.module[start:]).removesuffix(suffix) == _letters(target.module[begin:])
        for start, begin in ((0, 0), shared)
    )


def _letters(names: Names) -> str:
    """Names without separators and capitals."""
    return re.sub(r"\W|_", "", "".join(names).lower())


def _fit(tensor: _Tensor, target: _Target) -> _Line | None:
    """Returns the line by which a tensor becomes an array of Flax; None if it cannot."""
    if target.kind not in _KINDS.get(tensor.kind, (tensor.kind,)):
        return None
    one, other = tensor.shape, target.shape
    if len(target.paths) > 1:
        return _three(tensor, target)
    if target.kind == "kernel" and len(one) >= 2:
        if len(one) == len(other) and other == (*one[2:], one[1], one[0]):
            axes = " ".join("dhw"[5 - len(one) :]) if len(one) > 2 else ""
            return _Line(target, " ".join(f"o i {axes} -> {axes} i o".split()))
        if len(one) == 2 and len(other) == 3:
            if other[0] == one[1] and math.prod(other[1:]) == one[0]:
                return _Line(target, "(h d) i -> i h d", {"h": other[1]})
            if other[2] == one[0] and math.prod(other[:2]) == one[1]:
                return _Line(target, "o (h d) -> h d o", {"h": other[0]})
        return None
    if tensor.kind == "bias" and len(other) == 2 and one == (math.prod(other),):
        return _Line(target, "(h d) -> h d", {"h": other[0]})
    return _Line(target, "") if one == other else None


def _three(tensor: _Tensor, target: _Target) -> _Line | None:
    """Queries, keys and values, which PyTorch has in one array."""
    inputs, *features = target.shape if tensor.kind == "in_proj_weight" else (0, *target.shape)
    expected = (3 * math.prod(features), inputs)[: len(tensor.shape)]
    if tensor.shape != expected or len(features) not in (1, 2):
        return None
    axes = "h d" if len(features) == 2 else "o"
    i = "i " if inputs else ""
    text = f"(n {axes}) {i}-> n {i}{axes}"
    return _Line(target, text, {"h": features[0]} if len(features) == 2 else {})


def _check_kernels(lines: Mapping[str, _Line], tensors: Sequence[_Tensor]) -> dict[str, _Line]:
    """The lines, with what shapes cannot tell: a flatten between, and kernels the other way."""
    checked = dict(lines)
    channels = 0
    for tensor in tensors:
        line = lines.get(tensor.name)
        if line is None or line.target.kind != "kernel":
            continue
        if "convtranspose" in "".join(line.target.module).lower().replace("_", ""):
            checked[tensor.name] = replace(line, unsure=line.unsure or _FLIPPED)
        features, inputs, *kernel = tensor.shape
        if kernel:
            channels = features
            continue
        if channels and inputs > channels and inputs % channels == 0:
            checked[tensor.name] = _Line(
                line.target, "o (c s) -> (s c) o", {"c": channels}, line.unsure or _FLATTENED
            )
        channels = 0
    return checked

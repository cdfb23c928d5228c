# pyright: strict
"""The scope of a proof: shapes, dtypes, leaves, settings and steps.

Both sides are traced again with sizes that are symbols. A side can look at these in Python, and
Python then takes one of two branches, so the looks are recorded: every read of a shape, and every
question about a size that the symbols cannot answer. Only a side that never looked is said to be
the same for arrays of any shape.
"""

import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType, ModuleType

import jax
import numpy as np
from jax import export

from equivalence_tests.proof.bits.graph import Node
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.induction.world import World
from equivalence_tests.proof.reading.sides import Inputs, MakeSide, Program, trace_side
from equivalence_tests.proof.reading.symbols import NotASymbol
from optax_bridge import exact
from optax_bridge.metadata.trees import Params

MOST_AXES = 5
ANY, ANY_SIZE, GIVEN = "any", f"0 to {MOST_AXES} axes", "given"
_COVERAGES = (ANY, ANY_SIZE, GIVEN)


@dataclass(frozen=True)
class Scope:
    """The shapes, dtypes, leaves and settings for which a verdict holds."""

    leaves: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    coverage: str
    looks: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    fixed: Mapping[str, float] | None = None
    steps: int | None = None  # as many as a count in floating point moves; None for any number

    def as_dict(self) -> Json:
        """The scope as plain data."""
        return {
            "leaves": dict(self.leaves),
            "shapes": {path: list(shape) for path, shape in self.shapes.items()},
            "coverage": self.coverage,
            "looks": list(self.looks),
            "settings": list(self.settings),
            "fixed": dict(self.fixed or {}),
            "steps": "any" if self.steps is None else self.steps,
        }

    def __str__(self) -> str:
        """Returns the scope as one line."""
        settings = f", and all {', '.join(self.settings)}" if self.settings else ""
        for name, value in (self.fixed or {}).items():
            settings += f", with {name} = {value:g} alone"
        steps = "any number of steps" if self.steps is None else f"the first {self.steps} steps"
        return (
            f"for all parameters, gradients and states{settings}; {self._tree()}; "
            f"{self._arrays()}; {steps}"
        )

    def _arrays(self) -> str:
        if self.coverage == ANY:
            return "for arrays of any shape"
        if self.coverage == ANY_SIZE:
            return f"for arrays of 0 to {MOST_AXES} axes of any length"
        shapes = ", ".join(f"{_short(path)} {list(s)}" for path, s in self.shapes.items())
        return f"only for these shapes: {shapes}"

    def _tree(self) -> str:
        by_dtype: dict[str, list[str]] = {}
        for path, dtype in self.leaves.items():
            by_dtype.setdefault(dtype, []).append(_short(path))
        kinds = [f"{', '.join(paths)} in {dtype}" for dtype, paths in by_dtype.items()]
        count = len(self.leaves)
        return f"{count} {'leaf' if count == 1 else 'leaves'}: {'; '.join(kinds)}"


def _short(path: str) -> str:
    """A path without its first part: `['kernel']` for `params['kernel']`, all of a bare leaf."""
    return path.removeprefix("params") or path


def coverage(sides: tuple[MakeSide, ...], inputs: Inputs) -> tuple[str, tuple[str, ...]]:
    """The shapes that a proof for some shapes covers, as far as the sides' Python decides it."""
    weakest, looks = ANY, dict[str, None]()
    for make in sides:
        kind, places = _coverage_of(make, inputs)
        weakest = max(weakest, kind, key=_COVERAGES.index)
        looks |= dict.fromkeys(places)
    return weakest, tuple(looks)


def _coverage_of(make: MakeSide, inputs: Inputs) -> tuple[str, list[str]]:
    with _Watch() as watch:
        try:
            original = _results(trace_side(make, inputs, "a"), inputs)
            few = (*with_axes(inputs.params, (0, 2)), *with_other_sizes(inputs.params))
            uniform = _same_for(make, inputs, original, few)
            # Where nothing looks at a shape, other numbers of axes are traced alike.
            if uniform and watch.reads and not watch.questions:
                more = with_axes(inputs.params, {*range(MOST_AXES + 1)} - {0, 2})
                uniform = _same_for(make, inputs, original, more)
        except (ProofError, NotASymbol):  # it was made for the shapes that it has
            uniform = False
    if watch.questions or not uniform:
        return GIVEN, [*watch.questions, *watch.reads]
    return (ANY_SIZE, list(watch.reads)) if watch.reads else (ANY, [])


def _same_for(
    make: MakeSide, inputs: Inputs, original: list[Node], trees: Iterable[Params]
) -> bool:
    """True if a side computes every element alike for arrays of other shapes."""
    for params in trees:
        resized = replace(inputs, params=params)
        if not _same_structure(original, _results(trace_side(make, resized, "a"), resized)):
            return False
    return True


def _results(side: Program, inputs: Inputs) -> list[Node]:
    """Returns the nodes of a side's states and parameters at its start and after a step."""
    world = World(inputs)
    start, step = world.start(side), world.step(side, world.symbols(side))
    return [node for nodes in (*start, *step) for node in nodes]


def _same_structure(lhs: list[Node], rhs: list[Node]) -> bool:
    """True if nodes are computed by the same operations, for any shapes of their arrays."""
    seen: set[tuple[int, int]] = set()
    stack = list(zip(lhs, rhs, strict=False))
    while stack:
        a, b = (node.args[0] if node.op == "splat" else node for node in stack.pop())
        if (a.id, b.id) in seen:
            continue
        seen.add((a.id, b.id))
        same = (a.op, a.params, a.dtype) == (b.op, b.params, b.dtype) and a.general == b.general
        if not same or len(a.args) != len(b.args):
            return False
        stack += zip(a.args, b.args, strict=True)
    return len(lhs) == len(rhs)


def with_axes(params: Params, numbers_of_axes: Iterable[int]) -> Iterator[Params]:
    """Yields the same tree with axes whose sizes are symbols, for each number of axes."""
    names = ", ".join(f"n{axis}" for axis in range(MOST_AXES))
    symbols = tuple(export.symbolic_shape(names))
    for axes in numbers_of_axes:
        yield _with_shapes(params, lambda leaf, axes=axes: symbols[:axes])


def with_other_sizes(params: Params) -> Iterator[Params]:
    """Yields the same tree with one number in each array, and with more axes, each longer."""
    yield _with_shapes(params, lambda leaf: (1,))
    yield _with_shapes(params, lambda leaf: (2, *(size + 1 for size in leaf.shape)))


def _with_shapes(
    params: Params, shape: Callable[[jax.ShapeDtypeStruct], tuple[object, ...]]
) -> Params:
    def with_shape(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape(leaf), leaf.dtype)

    return jax.tree.map(with_shape, params)


def _folder_of(module: ModuleType) -> str:
    return str(Path(module.__file__ or "").parent) + os.sep


# Code that looks at shapes for its own ends: JAX's rules, which are the same for every program; the
# prover itself; and `optax_bridge.exact`, which traces leaves of one shape once and thereby changes
# no operation. These are trusted.
_JAX = _folder_of(jax)
_EXACT = _folder_of(exact)
_PROVER = _folder_of(sys.modules[__name__])
_SIDES = str(Path(_PROVER).parent / "sides") + os.sep
# Code through which a program looks: `np.shape(x)`, `functools.reduce(mul, x.shape)`.
_THROUGH = (_folder_of(np), sysconfig.get_paths()["stdlib"] + os.sep)
_SITE = sysconfig.get_paths()["purelib"] + os.sep
_READS = frozenset({"shape", "ndim", "size", "nbytes", "__len__"})
# A type as a whole can be compared and hashed unseen, so reading it counts as a question.
_TYPE_READS = frozenset({"typeof", "aval"})
_TEXTS = frozenset({"__str__", "__repr__", "__format__"})
_COMPARISONS = frozenset({"__eq__", "__hash__"})
# Of sizes that are symbols; comparing them by size is an error where it is not sure.
_ANSWERS = frozenset({"__ne__", "__hash__", "__int__", "__index__", "__float__", "__bool__"})


class _Watch:
    """Records how code outside of JAX reads shapes while it is active."""

    def __init__(self):
        self.reads: dict[str, None] = {}
        self.questions: dict[str, None] = {}
        # By `id`, as to hash code takes longest; the code is kept, so that its id stays its own.
        self._watchers: dict[int, Callable[[FrameType], None] | None] = {}
        self._kept: list[CodeType] = []

    def __enter__(self) -> "_Watch":
        # Tracing sees calls of Python alone, of which there are far fewer than profiling sees.
        self._before = sys.gettrace()
        sys.settrace(self._observe)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _observe(self, frame: FrameType, event: str, argument: object) -> None:
        del event, argument  # a call: what is called is followed no further
        code = frame.f_code
        try:
            watcher = self._watchers[id(code)]
        except KeyError:
            self._kept.append(code)
            watcher = self._watchers[id(code)] = self._watcher(code)
        if watcher is not None:
            watcher(frame)

    def _watcher(self, code: CodeType) -> Callable[[FrameType], None] | None:
        """Returns the observer of calls of some code; None if they say nothing of shapes."""
        file, name = code.co_filename, code.co_name
        if not file.startswith(_JAX):
            # The attribute `aval` is read without a call.
            looks = "aval" in code.co_names and not _is_machinery(file)
            return (lambda frame: self._note(self.questions, frame)) if looks else None
        if name == "<lambda>":  # how a tracer defines its properties
            return self._property if "name" in code.co_freevars else None
        if file.endswith("shape_poly.py"):
            return self._size if name in _ANSWERS | _TEXTS | _READS | {"__eq__"} else None
        if name in _TYPE_READS:
            return lambda frame: self._note(self.questions, _asker(frame))
        if name in _READS:
            return lambda frame: self._note(self.reads, _asker(frame))
        return self._comparison if name in _COMPARISONS else None

    def _property(self, frame: FrameType) -> None:
        name = str(frame.f_locals.get("name", ""))
        if name in _READS | _TYPE_READS:
            places = self.reads if name in _READS else self.questions
            self._note(places, _asker(frame))

    def _comparison(self, frame: FrameType) -> None:
        if isinstance(frame.f_locals.get("self"), jax.ShapeDtypeStruct):  # sizes and all
            self._note(self.questions, _asker(frame))

    def _size(self, frame: FrameType) -> None:
        name = frame.f_code.co_name
        if name in _TEXTS:  # JAX writes sizes only where somebody wants its text
            self._note(self.questions, _asker(frame, through_jax=True))
        elif name in _READS:
            self._note(self.reads, _asker(frame))
        elif name != "__eq__" or not _always(frame):
            self._note(self.questions, _asker(frame))

    def _note(self, places: dict[str, None], asker: FrameType | None) -> None:
        if asker is not None:
            places[_place(asker)] = None


def _always(frame: FrameType) -> bool:
    """True if `==` holds for all sizes; of sizes that may be equal it answers False."""
    values = frame.f_locals
    return bool(values.get("self") == values.get("other"))


@functools.cache
def _is_machinery(file: str) -> bool:
    if file.endswith("_test.py"):
        return False
    return file.startswith((_JAX, _PROVER, _SIDES, _EXACT)) or _is_through(file)


@functools.cache
def _is_through(file: str) -> bool:
    if file.startswith("<frozen"):
        return True
    return file.startswith(_THROUGH) and (
        file.startswith(_THROUGH[0]) or not file.startswith(_SITE)
    )


def _asker(frame: FrameType, through_jax: bool = False) -> FrameType | None:
    """Returns the frame outside of JAX that reads a shape; None for JAX and the prover."""
    caller = frame.f_back
    while caller is not None:
        if caller.f_code.co_name == "__instancecheck__":  # a class is no shape
            return None
        file = caller.f_code.co_filename
        if not (_is_through(file) or (through_jax and file.startswith(_JAX))):
            return None if _is_machinery(file) else caller
        caller = caller.f_back
    return None


def _place(frame: FrameType) -> str:
    path = Path(frame.f_code.co_filename)
    return f"{path.name}:{frame.f_lineno}"

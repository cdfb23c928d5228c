"""What a compiled step does, counted: beside a timed ratio, a judge that has no noise.

XLA's optimised program is a list of loops over arrays. Two steps whose loops read and write the
same arrays with the same number of operations of each kind take the same time, whatever a clock
says. Where they differ, the counts say by what.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

# `  ROOT %name = f32[8,4]{1,0} add(%a, %b), ...`; a tuple's shape is in parentheses.
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%(\S+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|body)=%([\w.\-]+)")
# What a loop does not pay for.
_FREE = {"parameter", "constant", "broadcast", "bitcast", "tuple", "get-tuple-element", "reshape"}
# Kinds that cost the same.
_KIND = {"subtract": "add", "negate": "add", "maximum": "add", "minimum": "add"}
# Of the program's own instructions, those that are no loops.
_NO_LOOP = _FREE | {"while", "conditional", "call"}

Loop = tuple[tuple[str, ...], tuple[tuple[str, int], ...]]


@dataclass(frozen=True)
class Work:
    """What a step does.

    Attributes:
      loops: each loop over arrays (what is computed of scalars does not count): the arrays that it
        reads and writes, and its operations by kind; and how many there are of the like.
      bytes_moved: what they read and write, as XLA counts it.
      operations: how many operations on elements there are, by kind.
    """

    loops: Counter[Loop]
    bytes_moved: float
    operations: Counter[str]


def work_of(program: Any) -> Work:
    """What a compiled program does.

    Args:
      program: as `jax.jit(...).lower(...).compile()` gives it.
    """
    cost: Any = program.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    loops, operations = _counted(program.as_text())
    return Work(loops, cost["bytes accessed"], operations)


def compared(one: Work, other: Work) -> tuple[bool, str]:
    """Whether two steps do the same, and what one does beyond the other, in words."""
    if one.loops == other.loops:
        return True, "the same loops"
    parts = [f"bytes {one.bytes_moved / other.bytes_moved:.2f}"]
    total = [sum(work.operations.values()) for work in (one, other)]
    parts.append(f"operations {total[0] / max(total[1], 1):.2f}")
    size = max([*one.operations.values(), *other.operations.values()])
    kinds = sorted({*one.operations, *other.operations})
    more = {kind: one.operations[kind] - other.operations[kind] for kind in kinds}
    least = size / 100  # what is done to every element of small leaves alone does not count
    named = [f"{'more' if n > 0 else 'less'} {kind}" for kind, n in more.items() if abs(n) > least]
    return False, ", ".join([*parts, *named])


def _counted(text: str) -> tuple[Counter[Loop], Counter[str]]:
    computations = _computations(text)
    inside = _fused(computations)
    loops: Counter[Loop] = Counter()
    operations: Counter[str] = Counter()
    for name, instructions in computations.items():
        if name in inside:
            continue
        shapes = {instruction.name: instruction.shape for instruction in instructions}
        for instruction in instructions:
            if instruction.kind in _NO_LOOP or _elements(instruction.shape) <= 1:
                continue
            kinds: Counter[str] = Counter()
            for called in instruction.called:
                for own in computations.get(called, ()):
                    if own.kind not in _FREE and _elements(own.shape) > 1:
                        kinds[_kind(own)] += 1
                        operations[_kind(own)] += _elements(own.shape)
            if not instruction.called:
                kinds[_kind(instruction)] += 1
                operations[_kind(instruction)] += _elements(instruction.shape)
            read = sorted(
                s for s in map(shapes.get, instruction.operands) if s and _elements(s) > 1
            )
            arrays = (*read, "->", *sorted(_each(instruction.shape)))
            loops[arrays, tuple(sorted(kinds.items()))] += 1
    return loops, operations


@dataclass(frozen=True)
class _Instruction:
    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    called: tuple[str, ...]


def _computations(text: str) -> dict[str, list[_Instruction]]:
    found: dict[str, list[_Instruction]] = {}
    own: list[_Instruction] = []
    for line in text.splitlines():
        if line.startswith(("%", "ENTRY %")) and line.rstrip().endswith("{"):
            own = found.setdefault(line.removeprefix("ENTRY ").lstrip("%").split(" ")[0], [])
        elif match := _INSTRUCTION.match(line):
            _, name, shape, kind, rest = match.groups()
            arguments = rest.split("), ")[0]
            operands = tuple(re.findall(r"%([\w.\-]+)", arguments))
            plain = re.sub(r"\{[^}]*\}", "", shape)
            own.append(_Instruction(name, plain, kind, operands, tuple(_CALLED.findall(line))))
    return found


def _fused(computations: dict[str, list[_Instruction]]) -> set[str]:
    """The computations that are inside of a loop, not lists of loops themselves."""
    return {
        called
        for instructions in computations.values()
        for instruction in instructions
        if instruction.kind not in ("while", "conditional", "call")
        for called in instruction.called
    }


def _kind(instruction: _Instruction) -> str:
    """A kind of operation; of a conversion, what it makes."""
    if instruction.kind == "convert":
        return f"conversions to {instruction.shape.partition('[')[0]}"
    return _KIND.get(instruction.kind, instruction.kind)


def _each(shape: str) -> list[str]:
    return [match.group() for match in _SHAPE.finditer(shape)]


def _elements(shape: str) -> int:
    """Of the largest array of a shape."""
    sizes = [match.group(2) for match in _SHAPE.finditer(shape)]
    return max((math.prod(int(n) for n in size.split(",") if n) for size in sizes), default=0)

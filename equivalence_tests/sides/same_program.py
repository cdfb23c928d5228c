"""One program or two: what a step is when it is traced again."""

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

_ADDRESS = re.compile("0x[0-9a-f]+")

Form = tuple[object, ...]


def is_same_program(first: core.ClosedJaxpr, later: core.ClosedJaxpr) -> bool:
    """True if a step that was traced twice was the same program, weak types aside."""
    return _form(first) == _form(later)


def digest_of(state: object) -> str:
    """Returns what identifies an array's numbers, or the state of a generator of NumPy."""
    if isinstance(state, dict):
        return ", ".join(digest_of(value) for value in state.values())
    if not isinstance(state, np.ndarray):
        return repr(state)
    numbers = np.ascontiguousarray(state).reshape(-1).view(np.uint8)
    return f"{state.dtype}{list(state.shape)} {zlib.crc32(numbers.data):x}"


def _form(program: core.Jaxpr | core.ClosedJaxpr) -> Form:
    """Returns a program's operations, with numbers for its values, and its results."""
    consts: Sequence[object] = ()
    if isinstance(program, core.ClosedJaxpr):
        program, consts = program.jaxpr, program.consts
    values: dict[core.Var, object] = {}
    numbers = itertools.count()
    for var, const in zip(program.constvars, consts, strict=False):
        values[var] = _setting(const)

    def read(atom: core.Var | core.Literal) -> object:
        if isinstance(atom, core.Literal):
            return _type_of(atom), digest_of(np.asarray(atom.val, _type_of(atom)[1]))
        if atom not in values:
            values[atom] = next(numbers)
        return values[atom]

    def operations() -> Iterator[Form]:
        for eqn in program.eqns:
            operands = [read(atom) for atom in eqn.invars]
            kinds = [_type_of(var) for var in eqn.outvars]
            converts = eqn.primitive.name == "convert_element_type"
            if converts and kinds == [_type_of(eqn.invars[0])]:  # a weak type alone is changed
                values[eqn.outvars[0]] = operands[0]
                continue
            settings = sorted((k, _setting(v)) for k, v in eqn.params.items() if k != "weak_type")
            results = [read(var) for var in eqn.outvars]
            yield eqn.primitive.name, settings, operands, results, kinds

    inputs = [read(var) for var in program.invars]
    done = list(operations())
    return tuple(inputs), done, [read(atom) for atom in program.outvars]


def _type_of(atom: core.Var | core.Literal) -> tuple[tuple[int, ...], str]:
    aval: Any = atom.aval
    return aval.shape, str(aval.dtype)


def _setting(value: object) -> object:
    """Returns a setting of an operation, or a constant, as what can be compared."""
    if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
        return _form(value)
    if isinstance(value, tuple | list):
        return tuple(map(_setting, value))
    if isinstance(value, jax.Array):
        is_key = jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
        value = np.asarray(jax.random.key_data(value) if is_key else value)
    return digest_of(value) if isinstance(value, np.ndarray) else _ADDRESS.sub("", str(value))

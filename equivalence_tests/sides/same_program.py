"""One program or two: a step that is traced again, and one that is traced in float64."""

import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from optax_bridge.metadata.trees import Leaf, PyTree

_ADDRESS = re.compile("0x[0-9a-f]+")

# A step reads or writes something in Python that changes from call to call.
NOT_PURE = (
    "its step, traced twice, gives two programs: functions must be pure, as JAX asks. Keep "
    "everything that changes from call to call in the state"
)


def is_same_program(first: core.ClosedJaxpr, later: core.ClosedJaxpr) -> bool:
    """True if a step that was traced twice was the same program, weak types aside."""
    return _Form().of(first) == _Form().of(later)


def is_same_but_wide(narrow: core.ClosedJaxpr, wide: core.ClosedJaxpr) -> bool:
    """True if two programs differ in their dtypes alone, and the second computes in float64."""
    if _narrows(wide.jaxpr):
        return False
    return _Form(any_float=True).of(narrow) == _Form(any_float=True).of(wide)


def are_close(narrow: PyTree, wide: PyTree) -> bool:
    """True if two trees hold the same numbers but for rounding."""
    if jax.tree.structure(narrow) != jax.tree.structure(wide):
        return False
    pairs = zip(jax.tree.leaves(narrow), jax.tree.leaves(wide), strict=True)
    return all(_near(_on_host(a)) == _near(_on_host(b)) for a, b in pairs)


@dataclass(frozen=True, eq=False)
class _Near:
    """Floating-point numbers that equal others up to the rounding of the coarser dtype."""

    numbers: np.ndarray
    eps: float

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Near) or self.numbers.shape != other.numbers.shape:
            return False
        rtol = 4 * max(self.eps, other.eps)
        return np.allclose(self.numbers, other.numbers, rtol=rtol, atol=0, equal_nan=True)


def _near(array: np.ndarray) -> object:
    if jnp.issubdtype(array.dtype, np.floating):
        return _Near(array.astype(np.float64), float(jnp.finfo(array.dtype).eps))
    return _digest(array)


def _digest(array: np.ndarray) -> str:
    """Returns a key that identifies an array's numbers."""
    numbers = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return f"{array.dtype}{list(array.shape)} {zlib.crc32(numbers.data):x}"


def _on_host(value: Leaf) -> np.ndarray:
    is_key = jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def _narrows(program: core.Jaxpr) -> bool:
    """True if some operation rounds to less than float64."""
    for eqn in program.eqns:
        dtypes = (getattr(var.aval, "dtype", np.dtype(bool)) for var in eqn.outvars)
        if any(jnp.issubdtype(d, np.floating) and d.itemsize < 8 for d in dtypes):
            return True
        inner = jax.tree.leaves(list(eqn.params.values()), is_leaf=_is_program)
        if any(_narrows(getattr(p, "jaxpr", p)) for p in inner if _is_program(p)):
            return True
    return False


def _is_program(value: object) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


@dataclass(frozen=True)
class _Form:
    """Programs as values that can be compared, with floating-point dtypes or without."""

    any_float: bool = False

    def of(self, program: core.Jaxpr | core.ClosedJaxpr) -> tuple[object, ...]:
        """Returns a program's operations, with numbers for its values, and its results."""
        consts: Sequence[object] = ()
        if isinstance(program, core.ClosedJaxpr):
            program, consts = program.jaxpr, program.consts
        values: dict[core.Var, object] = {}
        numbers = itertools.count()
        for var, const in zip(program.constvars, consts, strict=False):
            values[var] = self.setting(const)

        def read(atom: core.Var | core.Literal) -> object:
            if isinstance(atom, core.Literal):
                dtype = getattr(atom.aval, "dtype", None)
                return self.type_of(atom), self.setting(np.asarray(atom.val, dtype))
            if atom not in values:
                values[atom] = next(numbers)
            return values[atom]

        def operations() -> Iterator[tuple[object, ...]]:
            for eqn in program.eqns:
                operands = [read(atom) for atom in eqn.invars]
                kinds = [self.type_of(var) for var in eqn.outvars]
                converts = eqn.primitive.name == "convert_element_type"
                if converts and kinds == [
                    self.type_of(eqn.invars[0])
                ]:  # changes nothing that counts
                    values[eqn.outvars[0]] = operands[0]
                    continue
                params = {k: v for k, v in eqn.params.items() if k != "weak_type"}
                settings = sorted((k, self.setting(v)) for k, v in params.items())
                results = [read(var) for var in eqn.outvars]
                yield eqn.primitive.name, settings, operands, results, kinds

        inputs = [read(var) for var in program.invars]
        done = list(operations())
        return tuple(inputs), done, [read(atom) for atom in program.outvars]

    def type_of(self, atom: core.Var | core.Literal) -> tuple[tuple[int, ...], str]:
        """Returns the shape and the dtype of a value."""
        aval: Any = atom.aval
        return aval.shape, self._dtype(aval.dtype)

    def setting(self, value: object) -> object:
        """Returns a setting of an operation, or a constant, as a value that can be compared."""
        if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
            return self.of(value)
        if isinstance(value, tuple | list):
            return tuple(map(self.setting, value))
        if isinstance(value, jax.Array | np.ndarray):
            array = _on_host(value)
            return _near(array) if self.any_float else _digest(array)
        if self.any_float and isinstance(value, np.dtype | type):
            return self._dtype(value)
        if self.any_float and callable(value):  # rules of derivatives, made at each trace
            return getattr(value, "__name__", None)
        return _ADDRESS.sub("", str(value))

    def _dtype(self, dtype: Any) -> str:
        is_any = self.any_float and jnp.issubdtype(dtype, np.floating)
        return "floating" if is_any else str(dtype)

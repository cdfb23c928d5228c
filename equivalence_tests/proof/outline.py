# pyright: strict
"""Whether two traces of one side are one program: for another dtype, or for other shapes."""

from collections.abc import Iterator, Set
from typing import Any

import numpy as np
from jax.extend import core

from equivalence_tests.proof import programs
from equivalence_tests.proof.dtypes import is_float, is_key
from equivalence_tests.proof.programs import AnyJaxpr

_CONVERSIONS = frozenset(["convert_element_type"])
_CHANGES_OF_SHAPE = frozenset(["broadcast_in_dim", "reshape", "squeeze", "expand_dims"])


def alike_but_for_rounding(first: AnyJaxpr, second: AnyJaxpr) -> bool:
    """Whether two programs differ only by what half precision makes of numbers."""
    pair = [list(_outline(each, _CONVERSIONS)) for each in (first, second)]
    if len(pair[0]) != len(pair[1]):
        return False
    for a, b in zip(*pair, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            if a != b:
                return False
        elif not np.isclose(a, b, rtol=0.02, atol=1e-4) and max(abs(a), abs(b)) < 6e4:
            return False
    return True


def alike_but_for_shapes(first: AnyJaxpr, second: AnyJaxpr) -> bool:
    """Whether two programs have the same operations and numbers, whatever their shapes."""
    pair = [list(_outline(each, _CHANGES_OF_SHAPE, whole=True)) for each in (first, second)]
    return pair[0] == pair[1]


def _outline(
    program: AnyJaxpr, without: Set[str], whole: bool = False
) -> Iterator[str | float | object]:
    """The operations and numbers of a program, some operations left out.

    Args:
      program: the program.
      without: operations that are left out.
      whole: whether integers and the settings of operations are numbers of it as well.
    """
    inner, consts = programs.opened(program)
    if whole:
        yield from (np.asarray(c).tolist() for c in consts if np.ndim(c) == 0 and not _is_key(c))
    for eqn in inner.eqns:
        if eqn.primitive.name not in without:
            yield eqn.primitive.name
            for atom in eqn.invars:
                if isinstance(atom, core.Literal):
                    if is_float(programs.aval_of(atom).dtype):
                        yield float(atom.val)
                    elif whole:
                        yield np.asarray(atom.val).item()
            if whole and eqn.primitive.name in ("integer_pow", "reduce_precision"):
                yield str(sorted(eqn.params.items()))
        for value in eqn.params.values():
            if programs.is_jaxpr(value):
                yield from _outline(value, without, whole)


def _is_key(value: Any) -> bool:
    return is_key(getattr(value, "dtype", np.dtype(object)))

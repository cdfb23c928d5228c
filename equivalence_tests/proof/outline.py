# pyright: strict
"""Whether two traces of one side are one program: for another dtype, or for other shapes."""

from collections.abc import Iterator, Set

import numpy as np
from jax.extend import core

from equivalence_tests.proof import programs
from equivalence_tests.proof.dtypes import is_float
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
    pair = [list(_outline(each, _CHANGES_OF_SHAPE)) for each in (first, second)]
    return pair[0] == pair[1]


def _outline(program: AnyJaxpr, without: Set[str]) -> Iterator[str | float]:
    """The operations and floating-point numbers of a program, some operations left out."""
    inner, _ = programs.opened(program)
    for eqn in inner.eqns:
        if eqn.primitive.name not in without:
            yield eqn.primitive.name
            for atom in eqn.invars:
                if isinstance(atom, core.Literal) and is_float(programs.aval_of(atom).dtype):
                    yield float(atom.val)
        for value in eqn.params.values():
            if programs.is_jaxpr(value):
                yield from _outline(value, without)

# pyright: strict
"""True if two traces of one side, for two dtypes, are one program."""

from collections.abc import Iterator

import numpy as np
from jax.extend import core

from equivalence_tests.proof.dtypes import is_float
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr


def same_up_to_rounding(first: AnyJaxpr, second: AnyJaxpr) -> bool:
    """True if two programs differ only by what half precision makes of numbers."""
    pair = [list(_outline(each)) for each in (first, second)]
    if len(pair[0]) != len(pair[1]):
        return False
    for a, b in zip(*pair, strict=True):
        if isinstance(a, str) or isinstance(b, str):
            if a != b:
                return False
        elif not np.isclose(a, b, rtol=0.02, atol=1e-4) and max(abs(a), abs(b)) < 6e4:
            return False
    return True


def _outline(program: AnyJaxpr) -> Iterator[str | float | object]:
    """Yields the operations and numbers of a program, conversions of dtypes left out."""
    inner, _ = programs.jaxpr_and_consts(program)
    for eqn in inner.eqns:
        if eqn.primitive.name != "convert_element_type":
            yield eqn.primitive.name
            for atom in eqn.invars:
                if isinstance(atom, core.Literal) and is_float(programs.aval_of(atom).dtype):
                    yield float(atom.val)
        for value in eqn.params.values():
            if programs.is_jaxpr(value):
                yield from _outline(value)

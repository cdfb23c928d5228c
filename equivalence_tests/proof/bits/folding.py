"""Constants of constants, where IEEE arithmetic says what they are."""

from collections.abc import Hashable, Sequence

import jax
import numpy as np

from equivalence_tests.proof.dtypes import DType, is_complex, is_float
from equivalence_tests.proof.node import Node, settings_of
from equivalence_tests.proof.primitives import Primitive
from equivalence_tests.proof.primitives.primitive import Builder


def fold_constants(
    graph: Builder, row: Primitive, args: Sequence[Node], params: Hashable, dtype: DType
) -> Node | None:
    """Returns the constant that an operation of constants gives; None if it is no such constant.

    Sums, products and quotients of floating-point constants stay as they are written: over the
    reals they are meant without the rounding.
    """
    if not row.folds or row.numbers is None or any(arg.shape for arg in args):
        return None
    if row.folds == "whole" and is_float(dtype):
        return None
    if any(arg.op != "const" or is_complex(arg.dtype) for arg in args):
        return None
    values = [graph.constant(arg) for arg in args]
    if any(value is None for value in values):
        return None
    if row.name in ("rem", "div"):
        numbers = [int(value) for value in values if value is not None]
        if numbers[1] == 0 or max(map(abs, numbers)) > 2**31:
            return None
    if row.name == "not" and dtype != np.bool_:
        return None
    if row.name == "convert_element_type" and is_float(args[0].dtype) and not is_float(dtype):
        return None  # no rule says what becomes of a number that does not fit
    with np.errstate(all="ignore"):
        result = row.numbers(settings_of(params), jax.ShapeDtypeStruct((), dtype), *values)
        return graph.const(np.asarray(result).astype(dtype), dtype)

"""Constants of constants, where IEEE arithmetic says what they are."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from equivalence_tests.proof.bits.nodes import Node, Nodes
from equivalence_tests.proof.dtypes import DType, is_complex, is_float

# Sums, products and quotients of floating-point constants stay as they are written: over the reals
# they are meant without the rounding.
_FOLDS: dict[str, Callable[..., ArrayLike]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "neg": np.negative,
    "abs": np.abs,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "not": np.logical_not,
    "convert_element_type": lambda value: value,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "max": np.maximum,
    "min": np.minimum,
    "rem": np.fmod,
    "div": lambda a, b: np.trunc(a / b) if b else np.zeros_like(a),
    "sign": np.sign,
    "clamp": lambda low, value, high: np.minimum(np.maximum(value, low), high),
}
_ROUNDS = ("add", "sub", "mul", "div", "rem", "max", "min", "sign", "clamp")


def folded(g: Nodes, op: str, args: Sequence[Node], dtype: DType) -> Node | None:
    """The constant that an operation of constants gives, where IEEE arithmetic says which."""
    if op not in _FOLDS or not args or any(arg.shape for arg in args):
        return None
    if any(arg.op != "const" or arg.id not in g.values for arg in args):
        return None
    values = [g.values[arg.id] for arg in args]
    if op in _ROUNDS and is_float(dtype):
        return None
    if op in ("rem", "div") and (values[1] == 0 or max(map(abs, map(int, values))) > 2**31):
        return None
    if op == "not" and dtype != np.bool_:
        return None
    if op == "convert_element_type":
        from_float = is_float(args[0].dtype)
        if from_float and not is_float(dtype):
            return None  # what does not fit is nobody's rule
    if any(is_complex(arg.dtype) for arg in args):
        return None
    with np.errstate(all="ignore"):
        return g.const(np.asarray(_FOLDS[op](*values)).astype(dtype), dtype)

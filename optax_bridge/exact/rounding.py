# pyright: strict, reportMissingTypeStubs=false
"""bfloat16 arithmetic on CPUs in half the time: float32, rounded by fewer instructions, same bits.

No CPU computes in bfloat16: XLA computes each operation in float32 and rounds its result, by nine
instructions, of which four see to NaN. Among numbers that are bfloat16 already that is not needed:
a NaN that an operation makes, or passes on, has zeros where rounding would carry. So the program is
run in float32 as a whole, rounded after each operation by five instructions, and NaN is made the
one that XLA makes where arrays become bfloat16 again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from optax_bridge._internals import staged

_BF16 = jnp.bfloat16
_BARRIER: Any = vars(jax.lax)["optimization_barrier"]  # whose types are unknown
# By name, with all operands bfloat16: what XLA computes in float32 and rounds, and what is exact.
_ROUNDED = {"add", "sub", "mul", "div", "sqrt", "square"}
_EXACT = {
    *("abs", "broadcast_in_dim", "copy", "copy_p", "max", "min", "neg", "reshape", "select_n"),
    *("squeeze", "transpose", "eq", "ge", "gt", "le", "lt", "ne"),
}
_CALLS = {"jit", "pjit"}


def rounded(value: jax.Array) -> jax.Array:
    """The nearest bfloat16, of two the even one, as float32.

    Args:
      value: float32; a NaN must have zeros in the lower half of its bits.
    """
    bits = jax.lax.bitcast_convert_type(value, jnp.int32)  # signed: XLA checks shifts of unsigned
    odd = (bits >> 16) & 1
    return jax.lax.bitcast_convert_type((bits + 0x7FFF + odd) & -0x10000, jnp.float32)


def in_float32(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, computing in float32 wherever it computes in bfloat16, with the same bits.

    Other types, and operations that are not known here, stay as they are. It pays where XLA's loops
    do little else than to round; the programs that it makes are good for CPUs alone.

    Args:
      function: from trees of arrays to a tree of arrays; traced anew at each call.

    Returns:
      The same function; what takes and returns bfloat16 still does.
    """

    def run(*trees: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*trees)
        # Behind the barrier, so that XLA does not drop a conversion with one that came before, and
        # the rounding with both.
        arguments = [_converted(leaf) for leaf in _BARRIER(jax.tree.leaves(trees))]
        results = _evaluate(program.jaxpr, program.consts, arguments, {})
        kinds = [_is_bf16(variable) for variable in program.jaxpr.outvars]
        narrow = [_narrowed(x) if kind else x for x, kind in zip(results, kinds, strict=True)]
        return jax.tree.unflatten(jax.tree.structure(shapes), narrow)

    return run


def in_float32_on_cpus(function: Callable[..., Any]) -> Callable[..., Any]:
    """`in_float32` where `jax.jit` compiles bfloat16 for CPUs; elsewhere the function itself."""
    wide = in_float32(function)

    def run(*trees: Any) -> Any:
        leaves = jax.tree.leaves(trees)
        if not staged(*leaves) or all(leaf.dtype != _BF16 for leaf in leaves):
            return function(*trees)
        return jax.lax.platform_dependent(*trees, cpu=wide, default=function)

    return run


def _is_bf16(variable: Any) -> bool:
    return getattr(variable.aval, "dtype", None) == _BF16


def _converted(value: Any) -> Any:
    return value.astype(jnp.float32) if getattr(value, "dtype", None) == _BF16 else value


def _widened(value: Any) -> Any:
    """As float32, by its bits, which XLA leaves as they are; a slower loop than by conversion."""
    if getattr(value, "dtype", None) != _BF16:
        return value
    bits = jax.lax.bitcast_convert_type(value, jnp.uint16).astype(jnp.uint32) << 16
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _narrowed(value: jax.Array) -> jax.Array:
    """As bfloat16, which the value is already, and NaN as XLA makes it."""
    bits = jax.lax.bitcast_convert_type(value, jnp.uint32)
    nan = (bits & jnp.uint32(0xFF800000)) | jnp.uint32(0x400000)
    upper = jnp.where(jnp.isnan(value), nan, bits) >> 16
    return jax.lax.bitcast_convert_type(upper.astype(jnp.uint16), _BF16)


def _evaluate(
    program: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], jitted: dict[int, Any]
) -> list[Any]:
    """Runs a program whose bfloat16 values are float32; `jitted` has its functions' own such."""
    values: dict[Any, Any] = dict(zip(program.constvars, map(_converted, consts), strict=True))
    values.update(zip(program.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        if isinstance(variable, core.Literal):
            return _converted(jnp.asarray(variable.val, variable.aval.dtype))
        return values[variable]

    for equation in program.eqns:
        operands = [read(variable) for variable in equation.invars]
        results = _one(equation, operands, jitted)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in program.outvars]


def _one(equation: Any, operands: list[Any], jitted: dict[int, Any]) -> Sequence[Any]:
    name = equation.primitive.name
    narrow = [_is_bf16(variable) for variable in equation.invars]
    if name in _CALLS:
        own = equation.params["jaxpr"]
        if id(own) not in jitted:  # parameters that are alike share a function

            def call(*arguments: Any) -> list[Any]:
                return _evaluate(own.jaxpr, own.consts, arguments, jitted)

            jitted[id(own)] = jax.jit(call)
        return jitted[id(own)](*operands)
    if name in _EXACT:
        return [_bind(equation, operands)]
    if name in _ROUNDED and all(narrow):
        return [rounded(_bind(equation, operands))]
    if name == "integer_pow" and all(narrow) and equation.params["y"] == 2:
        return [rounded(operands[0] * operands[0])]
    if name == "convert_element_type" and equation.params["new_dtype"] == jnp.float32 and narrow[0]:
        return operands
    own_types = [_narrowed(x) if kind else x for x, kind in zip(operands, narrow, strict=True)]
    results = _bind(equation, own_types)
    return [_widened(x) for x in (results if equation.primitive.multiple_results else [results])]


def _bind(equation: Any, operands: list[Any]) -> Any:
    return equation.primitive.bind(*operands, **equation.params)

"""bfloat16 arithmetic on CPUs in half the time: float32, rounded by fewer instructions, same bits.

XLA computes a bfloat16 operation of CPUs in float32 and rounds the result, by nine instructions, of
which four see to NaN. Between operations on bfloat16 they are not needed: a NaN that comes out of
one has zeros in the lower half of its bits, and rounding does not carry. So the program is run in
float32 as a whole, each operation rounded by five instructions, and NaN gets the bits that XLA
gives it where arrays become bfloat16 again.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from optax_bridge._internals import staged

_BF16 = jnp.bfloat16
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

    It pays where XLA's loops do little else than to round; the programs are good for CPUs alone.
    Where two NaN meet, the compiler may keep the sign of either.

    Args:
      function: from trees of arrays to a tree of arrays; traced anew at each call.

    Returns:
      The same function; what takes and returns bfloat16 still does. One with operations on arrays
      of bfloat16 that are not known here computes as it did, a sum, say: XLA leaves out the
      rounding before it.
    """

    def run(*trees: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*trees)
        if not _is_known(program.jaxpr):
            return function(*trees)
        # Behind the barrier, so that XLA does not drop a conversion with one that came before, and
        # the rounding with both.
        arguments = [
            _converted(leaf) for leaf in jax.lax.optimization_barrier(jax.tree.leaves(trees))
        ]
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


@jax.jit  # traced once for all arrays of a shape
def _narrowed(value: jax.Array) -> jax.Array:
    """As bfloat16, which the value is already, and NaN as XLA makes it."""
    bits = jax.lax.bitcast_convert_type(value, jnp.uint32)
    nan = (bits & jnp.uint32(0xFF800000)) | jnp.uint32(0x400000)
    upper = jnp.where(jnp.isnan(value), nan, bits) >> 16
    return jax.lax.bitcast_convert_type(upper.astype(jnp.uint16), _BF16)


def _is_known(program: core.Jaxpr) -> bool:
    """Whether all that is computed in bfloat16 is known to be the same in float32."""
    return all(map(_is_known_one, program.eqns))


def _is_known_one(equation: Any) -> bool:
    name, inputs, outputs = equation.primitive.name, equation.invars, equation.outvars
    if name in _CALLS:
        return _is_known(equation.params["jaxpr"].jaxpr)
    if not any(map(_is_bf16, (*inputs, *outputs))) or name in _EXACT:
        return True
    if name == "convert_element_type":  # out of bfloat16, XLA may skip the rounding before it
        return not _is_bf16(inputs[0])
    if all(map(_is_bf16, inputs)) and (name in _ROUNDED or _is_square(equation)):
        return True
    return not any(getattr(variable.aval, "shape", ()) for variable in (*inputs, *outputs))


def _is_square(equation: Any) -> bool:
    return equation.primitive.name == "integer_pow" and equation.params["y"] == 2


def _evaluate(
    program: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any], jitted: dict[int, Any]
) -> list[Any]:
    """Runs a program whose bfloat16 values are float32; `jitted` has its functions' own such."""
    values: dict[Any, Any] = dict(zip(program.constvars, map(_converted, consts), strict=True))
    values.update(zip(program.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        if isinstance(variable, core.Literal):
            kind: Any = variable.aval
            return _converted(jnp.asarray(variable.val, kind.dtype))
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
    if all(narrow) and (name in _ROUNDED or _is_square(equation)):
        return [rounded(_bind(equation, operands))]
    own_types = [_narrowed(x) if kind else x for x, kind in zip(operands, narrow, strict=True)]
    results = _bind(equation, own_types)
    return [_widened(x) for x in (results if equation.primitive.multiple_results else [results])]


def _bind(equation: Any, operands: list[Any]) -> Any:
    return equation.primitive.bind(*operands, **equation.params)

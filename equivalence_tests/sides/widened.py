"""A side in float64 that computes what it computes in its own dtype.

Rounding shrinks in float64; another formula does not. But a formula may be chosen by the dtype, `if
params.dtype == jnp.bfloat16: ...`, and float64 would run another one. So a side is traced with both
dtypes. Where the two programs are the same but for their dtypes, it runs in float64 unchanged.
Otherwise the program of the real dtype, which took the branches of the real dtype, is evaluated
with every floating-point number in float64.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.typing import DTypeLike

from equivalence_tests.sides.precision import float64
from equivalence_tests.sides.scanned import constants_and_carry
from equivalence_tests.sides.side import Side
from optax_bridge.metadata.trees import Leaf, Params, PyTree

# They look at the bits of floating-point numbers, which are others in float64.
_OF_BITS = ("bitcast_convert_type", "nextafter")

# The parameters that hold the program of a call.
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")


_Traced = tuple[core.ClosedJaxpr, jax.tree_util.PyTreeDef]  # a program, and what it returns
_EqnParams = dict[str, Any]
_Atom = core.Var | core.Literal


class NotWidened(ValueError):
    """A program that means nothing in another precision; names the operation."""


def in_float64(side: Side, params: Params, inputs_of_step: Sequence[PyTree]) -> tuple[Side, bool]:
    """The side to be run where float64 is enabled."""
    if _same_in_both(side, params, inputs_of_step):
        return side, True
    return widen_side(side, params, inputs_of_step), False


def widen_side(side: Side, params: Params, inputs_of_step: Sequence[PyTree]) -> Side:
    """The program of the real dtype, with all numbers in float64."""
    with float64(False):
        state = side.init(jax.tree.map(jnp.asarray, params))
        step, after = _trace(side.step, state, *inputs_of_step)
        view, _ = _trace(side.view, after)
    # A state that was made elsewhere is taken over, so the first one is not traced.
    first = wide(state)
    return replace(side, init=lambda _: first, step=_evaluator(step), view=_evaluator(view))


def wide(tree: PyTree) -> PyTree:
    """A tree with its floating-point leaves in float64."""

    def leaf(value: Leaf) -> Leaf:
        is_float = jnp.issubdtype(jnp.result_type(value), jnp.floating)
        return np.asarray(value, np.float64) if is_float else value

    return jax.tree.map(leaf, tree)


def _trace(function: Callable[..., PyTree], *args: PyTree) -> tuple[_Traced, PyTree]:
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    return (closed, jax.tree.structure(shape)), shape


def _evaluator(traced: _Traced) -> Callable[..., PyTree]:
    closed, treedef = traced

    def run(*args: PyTree) -> PyTree:
        leaves = map(_wide_array, jax.tree.leaves(args))
        return treedef.unflatten(_run(closed.jaxpr, closed.consts, *leaves))

    return run


def _wide_array(value: Leaf) -> Leaf:
    if jnp.issubdtype(jnp.result_type(value), jnp.floating):
        return jnp.asarray(value, jnp.float64)
    return jnp.asarray(value)


def _run(jaxpr: core.Jaxpr, consts: Sequence[Leaf], *args: Leaf) -> list[Leaf]:
    """Evaluates a program, its floating-point numbers in float64."""
    values = dict(
        zip([*jaxpr.constvars, *jaxpr.invars], [*map(_constant, consts), *args], strict=True)
    )

    def read(atom: core.Var | core.Literal) -> Leaf:
        return _literal(atom) if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        outputs = _step(eqn, list(map(read, eqn.invars)))
        values.update(zip(eqn.outvars, outputs, strict=True))
    return list(map(read, jaxpr.outvars))


def _literal(atom: core.Literal) -> Leaf:
    return _constant(np.asarray(atom.val, getattr(atom.aval, "dtype", None)))


def _constant(value: Leaf) -> Leaf:
    """A constant of the program in float64; of a single number, what was meant by it."""
    if not (hasattr(value, "dtype") and _is_float(value.dtype)):
        return value
    exact = np.asarray(value).astype(np.float64)
    if exact.size != 1 or not np.isfinite(exact).all():
        return jnp.asarray(exact)
    number, of_dtype = exact.item(), np.asarray(value).dtype.type
    meant = (float(f"{number:.{digits}g}") for digits in range(1, 18))
    shortest = next((each for each in meant if float(of_dtype(each)) == number), number)
    return jnp.asarray(np.full(exact.shape, shortest))


def _step(eqn: core.JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
    name, params = eqn.primitive.name, eqn.params
    if name in _OF_BITS or "callback" in name:
        raise NotWidened(f"{name} has no meaning in another precision")
    if name == "reduce_precision":
        return inputs
    if name == "scan":
        return _scan(params, inputs)
    if name == "while":
        return _while(params, inputs)
    if name == "cond":
        index, *operands = inputs
        branches = [_function_of(branch) for branch in params["branches"]]
        return jax.lax.switch(index, branches, *operands)
    inner = next((params[key] for key in _INNER if key in params), None)
    if inner is not None:
        return _function_of(inner)(*inputs)
    if any(map(_is_program, jax.tree.leaves(list(params.values()), is_leaf=_is_program))):
        raise NotWidened(f"{name} holds programs of its own, for another precision")
    outputs = eqn.primitive.bind(*inputs, **{key: _dtype(value) for key, value in params.items()})
    return outputs if eqn.primitive.multiple_results else [outputs]


def _is_program(value: object) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)


def _function_of(jaxpr: core.Jaxpr) -> Callable[..., list[Leaf]]:
    """The inner program of a call, with its constants or without any."""
    consts = getattr(jaxpr, "consts", ())
    return lambda *args: _run(getattr(jaxpr, "jaxpr", jaxpr), consts, *args)


def _dtype(value: object) -> object:
    """A parameter of an operation; a floating-point dtype becomes float64."""
    try:
        is_float = isinstance(value, np.dtype | type) and jnp.issubdtype(value, jnp.floating)
    except TypeError:
        return value
    return np.dtype(np.float64) if is_float else value


def _scan(params: _EqnParams, inputs: list[Leaf]) -> list[Leaf]:
    body = _function_of(params["jaxpr"])
    n, m = constants_and_carry(params)
    consts, carry, rows = inputs[:n], inputs[n : n + m], inputs[n + m :]

    def step(carry: PyTree, row: PyTree) -> tuple[PyTree, PyTree]:
        outputs = body(*consts, *carry, *row)
        return outputs[:m], outputs[m:]

    carry, stacked = jax.lax.scan(
        step, carry, rows, length=params["length"], reverse=params["reverse"]
    )
    return [*carry, *stacked]


def _while(params: _EqnParams, inputs: list[Leaf]) -> list[Leaf]:
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    split = of_condition + of_body
    condition, body = _function_of(params["cond_jaxpr"]), _function_of(params["body_jaxpr"])
    return jax.lax.while_loop(
        lambda carry: condition(*inputs[:of_condition], *carry)[0],
        lambda carry: body(*inputs[of_condition:split], *carry),
        inputs[split:],
    )


def _same_in_both(side: Side, params: Params, inputs_of_step: Sequence[PyTree]) -> bool:
    """True if the side does the same in its own dtypes and in float64, but for the dtypes."""

    def program(params: Params, inputs_of_step: Sequence[PyTree]) -> tuple[PyTree, PyTree]:
        state = side.init(jax.tree.map(jnp.asarray, params))
        return state, _trace(side.step, state, *inputs_of_step)[0][0]

    with float64(False):
        state, narrow = program(params, inputs_of_step)
    with float64():
        try:
            other_state, other = program(wide(params), wide(tuple(inputs_of_step)))
        except (TypeError, ValueError):  # a loop whose carry was float32 by name, say
            return False
        return _close(state, other_state) and _alike(narrow, other)


def _close(narrow: Leaf, other: Leaf) -> bool:
    """True if two first states are the same but for rounding."""
    if jax.tree.structure(narrow) != jax.tree.structure(other):
        return False
    for a, b in zip(jax.tree.leaves(narrow), jax.tree.leaves(other), strict=True):
        a, b = _plain(a), _plain(b)
        if a.shape != b.shape:
            return False
        spacing = float(jnp.finfo(a.dtype).eps) if _is_float(a.dtype) else 0.0
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.allclose(a, b, rtol=4 * spacing, atol=0, equal_nan=True):
            return False
    return True


def _plain(value: Leaf) -> np.ndarray:
    is_key = jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def _alike(narrow: Leaf, other: Leaf) -> bool:
    """True if two programs do the same; `other` may not round to less than float64."""
    narrow, other = (_Program(getattr(each, "jaxpr", each)) for each in (narrow, other))
    if other.narrows or len(narrow.steps) != len(other.steps):
        return False
    pairs: dict[_Atom, _Atom] = dict(zip(narrow.inputs, other.inputs, strict=True))

    def same(a: _Atom, b: _Atom) -> bool:
        if isinstance(a, core.Literal) and isinstance(b, core.Literal):
            dtype = getattr(a.aval, "dtype", None)
            rounded = np.asarray(b.val).astype(dtype)
            return bool(np.array_equal(np.asarray(a.val, dtype), rounded, equal_nan=True))
        return not isinstance(a, core.Literal) and pairs.get(a) is b

    for one, two in zip(narrow.steps, other.steps, strict=True):
        if one.primitive is not two.primitive or not _same_params(one.params, two.params):
            return False
        operands = zip(map(narrow.source, one.invars), map(other.source, two.invars), strict=True)
        if not all(same(a, b) for a, b in operands):
            return False
        pairs.update(zip(one.outvars, two.outvars, strict=True))
    results = zip(map(narrow.source, narrow.outputs), map(other.source, other.outputs), strict=True)
    return all(same(a, b) for a, b in results)


class _Program:
    """A program without conversions between floating-point dtypes."""

    def __init__(self, jaxpr: core.Jaxpr):
        self.inputs, self.outputs = [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars
        self.steps: list[core.JaxprEqn] = []
        self.narrows = False
        self._sources: dict[_Atom, _Atom] = {}
        for eqn in jaxpr.eqns:
            dtypes = [getattr(atom.aval, "dtype", None) for atom in (*eqn.invars, *eqn.outvars)]
            outputs = dtypes[len(eqn.invars) :]
            # A counter that becomes a float32 is one in any mode, and so is what is made of it.
            self.narrows |= any(
                dtype.itemsize < 8 for dtype in outputs if dtype is not None and _is_float(dtype)
            )
            if eqn.primitive.name == "convert_element_type" and all(map(_is_float, dtypes)):
                self._sources[eqn.outvars[0]] = eqn.invars[0]
            else:
                self.steps.append(eqn)

    def source(self, atom: _Atom) -> _Atom:
        """The number that a conversion was made of."""
        while not isinstance(atom, core.Literal) and atom in self._sources:
            atom = self._sources[atom]
        return atom


def _is_float(dtype: DTypeLike | None) -> bool:
    return dtype is not None and jnp.issubdtype(dtype, jnp.floating)


def _same_params(narrow: _EqnParams, other: _EqnParams) -> bool:
    return narrow.keys() == other.keys() and all(
        _same_param(narrow[key], other[key]) for key in narrow
    )


def _same_param(narrow: Leaf, other: Leaf) -> bool:
    if hasattr(narrow, "eqns") or hasattr(narrow, "jaxpr"):
        return _alike(narrow, other)
    if isinstance(narrow, tuple) and isinstance(other, tuple):
        return len(narrow) == len(other) and all(map(_same_param, narrow, other))
    if callable(narrow) and callable(other):  # rules of derivatives, made at each trace
        return getattr(narrow, "__name__", None) == getattr(other, "__name__", None)
    return _dtype(narrow) == _dtype(other)

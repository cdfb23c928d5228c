"""What a graph computes, as functions of real numbers: each entry of an array by its indices.

An entry is asked for at indices that may be symbols, so arrays of any size cost the same. A sum
over an axis is a sum over a new index. Conversions between floating-point types, and all rounding,
are left out. What is not known here is an unknown function of its whole operands, and still equal
to itself.
"""

from collections.abc import Callable, Sequence, Set
from typing import Any

import jax.numpy as jnp
import numpy as np

from equivalence_tests.proof.algebra import Algebra, Index, Rat
from equivalence_tests.proof.decimals import decimal
from equivalence_tests.proof.errors import Undecided
from equivalence_tests.proof.graph import Graph, Node
from equivalence_tests.proof.indexing import indices, reshaped_index, shifted
from equivalence_tests.proof.programs import UNKNOWN
from equivalence_tests.proof.wholes import NO_OVERFLOW, holds, is_in_range, is_wide

_WHOLE = ("floor", "ceil", "round")
_OF_COMPLEX = frozenset(("add", "sub", "mul", "neg", "select_n"))  # what is so of any field
_OVERFLOW = frozenset(("add", "sub", "mul", "neg", "abs", "square", "integer_pow"))
_OF_DTYPE = frozenset(("rem", "nextafter"))  # not the same function in every dtype
_NO_ARITHMETIC = frozenset(("select_n", "max", "min", "eq", "ne", "lt", "le", "is_finite", "clamp"))


class Reals:
    """Entries of a graph's arrays in an algebra."""

    def __init__(self, graph: Graph, algebra: Algebra, cut: Set[int] = frozenset()):
        """Reads the nodes of the graph into the algebra.

        Args:
          graph: the graph.
          algebra: where values are made.
          cut: nodes that are taken for inputs, whatever they are computed of.
        """
        self.graph, self.algebra, self.cut = graph, algebra, cut
        self.known: dict[Any, Rat] = {}
        self.names: dict[Any, int] = {}
        self.unknown: dict[str, None] = {}

    def entry(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """An entry of an array, as a real number; of a boolean one as 1 or 0.

        Raises:
          Undecided: the normal form is too large.
        """
        key = (node.id, index)
        if key not in self.known:
            self.known[key] = self._entry(node, index)
        return self.known[key]

    def _entry(self, node: Node, index: tuple[Index, ...]) -> Rat:
        if node.id in self.cut:
            whole = not jnp.issubdtype(node.dtype, jnp.floating)
            value = self.algebra.leaf(f"node {node.id}", index, whole=whole)
            return self.algebra.positive(value) if node.dtype == np.bool_ else value
        if node.op in _SHAPES:
            return _SHAPES[node.op](self, node, index)
        if node.op not in _SCALAR and node.op not in _NO_ARITHMETIC:
            return self._whole_array(node, index)
        if node.op not in _OF_COMPLEX and any(map(_is_complex, (node, *node.args))):
            return self._whole_array(node, index)
        args = [self.entry(arg, index if arg.shape else ()) for arg in node.args]
        if node.op in _NO_ARITHMETIC:
            return self._chosen(node, args)
        result = _SCALAR[node.op](self, node, args)
        return self.wrapped(node, result) if node.op in _OVERFLOW else result

    def wrapped(self, node: Node, value: Rat) -> Rat:
        """What a node's dtype makes of a number, if it is an integer dtype."""
        algebra, dtype = self.algebra, node.dtype
        if not jnp.issubdtype(dtype, jnp.integer):
            return value

        def of(args: list[Rat]) -> Rat:
            number = algebra.constant(args[0])
            if number is not None and is_in_range(int(number), dtype):
                return args[0]
            # With such a factor it overflows, whatever one assumes.
            if is_wide(dtype) and all(is_in_range(int(c), dtype) for c in args[0].num.coeffs()):
                algebra.assumptions[NO_OVERFLOW] = None
                return args[0]
            nonneg = jnp.issubdtype(dtype, jnp.unsignedinteger)
            return algebra.call("function", f"as {dtype}", args, whole=True, nonneg=nonneg)

        return algebra.selected([value], of)

    def _whole_array(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """An unknown function of whole arrays."""
        args = [self.entry(arg, indices(arg.shape, "a")) for arg in node.args]
        shapes = tuple((arg.shape, str(arg.dtype)) for arg in node.args)
        key = (node.op, node.params, shapes, node.shape)
        number = self.names.setdefault(key, len(self.names))
        op = unknown_name(node) or node.op
        self.unknown[op] = None
        whole = not jnp.issubdtype(node.dtype, jnp.floating)
        name = f"{op} {number}"
        bound = frozenset(f"a{axis}" for arg in node.args for axis in range(len(arg.shape)))
        if any(self.algebra.is_special(arg) and self.algebra.free(arg) & bound for arg in args):
            raise Undecided(f"`{op}` of what is not defined everywhere")
        result = self.algebra.selected(
            args, lambda args: self.algebra.call("array", name, args, index, whole=whole), bound
        )
        return self.algebra.positive(result) if node.dtype == np.bool_ else result

    def _chosen(self, node: Node, args: list[Rat]) -> Rat:
        """What may have infinity as an operand: selections and comparisons."""
        algebra = self.algebra
        numbers = [self.graph.scalar(arg) for arg in node.args]
        infinite = [isinstance(number, float) and not np.isfinite(number) for number in numbers]
        if node.op == "is_finite":
            return self._if_finite(1)
        if node.op == "select_n":
            return self._selected(node, args)
        if node.op == "clamp":
            least, value, most = args
            for number, end in zip(numbers[::2], (-np.inf, np.inf), strict=True):
                if infinite[0 if end < 0 else 2] and number != end:
                    raise Undecided("`clamp` to infinity")
            if not infinite[0]:
                value = algebra.greatest(value, least)
            return value if infinite[2] else algebra.least(value, most)
        a, b = args
        if any(infinite):
            return self._against_infinity(node, args, numbers, infinite)
        if node.op == "max":
            return algebra.greatest(a, b)
        if node.op == "min":
            return algebra.least(a, b)
        if node.op in ("eq", "ne"):
            if a == b and jnp.issubdtype(node.args[0].dtype, jnp.floating):
                return self._if_finite(int(node.op == "eq"))  # so NaN is looked for
            same = algebra.zero(algebra.sub(a, b))
            return same if node.op == "eq" else algebra.complement(same)
        kind = node.args[0].dtype
        saturates = jnp.issubdtype(kind, jnp.integer) and numbers[1] == jnp.iinfo(kind).max
        if saturates and numbers[0] is None and node.op == "lt":
            algebra.assume(a, f"is less than {numbers[1]}")
            return algebra.number(1)
        if node.op == "lt":
            return algebra.positive(algebra.sub(b, a))
        return algebra.complement(algebra.positive(algebra.sub(a, b)))

    def _against_infinity(
        self, node: Node, args: list[Rat], numbers: list[Any], infinite: list[bool]
    ) -> Rat:
        if all(infinite) or any(
            np.isnan(n) for n, far in zip(numbers, infinite, strict=True) if far
        ):
            raise Undecided(f"`{node.op}` of infinity")
        place = infinite.index(True)
        other, above = args[1 - place], numbers[place] > 0
        if node.op in ("max", "min"):
            return args[place] if above == (node.op == "max") else other
        answer = node.op == "ne" if node.op in ("eq", "ne") else above == (place == 1)
        return self.algebra.selected([other], lambda _: self._if_finite(int(answer)))

    def _if_finite(self, answer: int) -> Rat:
        self.algebra.assumptions["all values are finite"] = None
        return self.algebra.number(answer)

    def _selected(self, node: Node, args: list[Rat]) -> Rat:
        algebra = self.algebra
        which, *cases = args
        if node.args[0].dtype == np.bool_:
            return algebra.choose(which, cases[1], cases[0])
        result = cases[-1]
        for number, case in list(enumerate(cases[:-1]))[::-1]:
            here = algebra.zero(algebra.sub(which, algebra.number(number)))
            result = algebra.choose(here, case, result)
        return result

    # Shapes

    def leaf(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """An entry of an input."""
        whole = not jnp.issubdtype(node.dtype, jnp.inexact)
        name = str(node.params)
        nonneg = name in self.graph.never_negative
        if nonneg and jnp.issubdtype(node.dtype, jnp.integer):
            self.algebra.assumptions[NO_OVERFLOW] = None
        nonneg = nonneg or jnp.issubdtype(node.dtype, jnp.unsignedinteger)
        value = self.algebra.leaf(name, index, whole=whole, nonneg=nonneg)
        return self.algebra.positive(value) if node.dtype == np.bool_ else value

    def const(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """A constant; floating-point ones are read as decimals."""
        if node.shape or node.id not in self.graph.values or _is_complex(node):
            return self.algebra.leaf(f"constant {node.id}", index)
        value = self.graph.values[node.id]
        if not jnp.issubdtype(value.dtype, jnp.floating):
            return self.algebra.number(int(value))
        if not np.isfinite(value):
            name = "NaN" if np.isnan(value) else "infinity"
            return self.algebra.special(f"{'-' if value < 0 else ''}{name}")
        number, exact = decimal(value)
        if not exact:
            read = int(number.p) / int(number.q)
            self.algebra.assumptions[f"the constant {value} is read as {read}"] = None
        return self.algebra.number(number)

    def splat(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """A scalar, wherever."""
        del index
        return self.entry(node.args[0], ())

    def broadcast(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`broadcast_in_dim`."""
        (arg,) = node.args
        dims = node.settings["broadcast_dimensions"]
        place = zip(arg.shape, dims, strict=True)
        return self.entry(arg, tuple(0 if size == 1 else index[dim] for size, dim in place))

    def transpose(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`transpose`."""
        order = node.settings["permutation"]
        place: list[Index] = [0] * len(order)
        for axis, source in enumerate(order):
            place[source] = index[axis]
        return self.entry(node.args[0], tuple(place))

    def reshape(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`reshape`, where axes are merged or split; else an unknown function."""
        place = reshaped_index(node.args[0].shape, node.shape, index)
        return self._whole_array(node, index) if place is None else self.entry(node.args[0], place)

    def iota(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`iota`: an index as a number."""
        return self.algebra.position(index[node.settings["dimension"]])

    def reduce_sum(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`reduce_sum`."""
        arg = node.args[0]
        axes = tuple(node.settings["axes"])
        while arg.op in ("reshape", "transpose") and (moved := _moved_axes(arg, axes)) is not None:
            if len(axes) != len(arg.shape):
                break  # the axes that stay would have to be followed as well
            arg, axes = arg.args[0], moved
        fresh = {axis: self.algebra.fresh() for axis in axes if arg.shape[axis] != 1}
        rest = iter(index)
        place = tuple(
            fresh.get(axis, 0) if axis in axes else next(rest) for axis in range(len(arg.shape))
        )
        bounds = [(symbol, arg.shape[axis]) for axis, symbol in fresh.items()]
        return self.wrapped(node, self.algebra.total(self.entry(arg, place), bounds))

    def reduce_bool(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`reduce_and`, `reduce_or`, `reduce_max` and the like: of equal elements, these."""
        arg = node.args[0]
        axes = node.settings["axes"]
        rest = iter(index)
        place = [f"a{axis}" if axis in axes else next(rest) for axis in range(len(arg.shape))]
        size = int(np.prod([arg.shape[axis] for axis in axes]))
        value = self.entry(arg, tuple(0 if arg.shape[a] == 1 else p for a, p in enumerate(place)))
        alike = not self.algebra.free(value) & {f"a{axis}" for axis in axes}
        return value if alike and size else self._whole_array(node, index)

    def dot_general(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`dot_general`: a sum of products."""
        left, right = node.args
        (lc, rc), (lb, rb) = node.settings["dimension_numbers"]
        fresh = [self.algebra.fresh() if left.shape[axis] != 1 else 0 for axis in lc]
        batch, rest = index[: len(lb)], iter(index[len(lb) :])
        places = []
        for array, contracted, batched in ((left, lc, lb), (right, rc, rb)):
            own = dict(zip(contracted, fresh, strict=True))
            own |= dict(zip(batched, batch, strict=True))
            places.append(
                tuple(own[a] if a in own else next(rest) for a in range(len(array.shape)))
            )
        pair = [self.entry(*each) for each in zip((left, right), places, strict=True)]
        sizes = zip(fresh, lc, strict=True)
        bounds = [(str(symbol), left.shape[axis]) for symbol, axis in sizes if symbol]
        return self.wrapped(node, self.algebra.total(self.algebra.mul(*pair), bounds))

    def concatenate(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`concatenate`: the array in which the index is."""
        axis = node.settings["dimension"]
        algebra, place, start = self.algebra, index[axis], 0
        if isinstance(place, tuple):
            return self._whole_array(node, index)
        parts = []
        for arg in node.args:
            at = (0 if arg.shape[axis] == 1 else shifted(place, -start),)
            if arg.shape[axis]:
                parts.append((start, self.entry(arg, index[:axis] + at + index[axis + 1 :])))
            start += arg.shape[axis]
        result = parts[0][1]
        for begin, part in parts[1:]:
            difference = algebra.sub(algebra.number(begin), algebra.position(place))
            result = algebra.choose(algebra.positive(difference), result, part)
        return result

    def slice(self, node: Node, index: tuple[Index, ...]) -> Rat:
        """`slice` without strides."""
        params = node.settings
        strides = params.get("strides")
        if strides is not None and any(stride != 1 for stride in strides):
            return self._whole_array(node, index)
        if any(isinstance(place, tuple) for place in index):
            return self._whole_array(node, index)
        starts = params["start_indices"]
        pairs = zip(index, starts, node.args[0].shape, strict=True)
        place = tuple(0 if size == 1 else shifted(i, start) for i, start, size in pairs)
        return self.entry(node.args[0], place)


def unknown_name(node: Node) -> str | None:
    """The name of a function that is to stay unknown, if a node is a call of one."""
    if node.op not in ("pjit", "jit"):
        return None
    name = node.settings.get("name", "")
    return str(name).removeprefix(UNKNOWN)


def _is_complex(node: Node) -> bool:
    return jnp.issubdtype(node.dtype, jnp.complexfloating)


def _moved_axes(node: Node, axes: Sequence[int]) -> tuple[int, ...] | None:
    """All axes of what was reshaped or transposed, where all axes are summed over."""
    del axes
    return tuple(range(len(node.args[0].shape)))


def _call(name: str | None = None, **known: Any) -> Callable[..., Rat]:
    """An unknown function of numbers."""

    def entry(reals: Reals, node: Node, args: list[Rat]) -> Rat:
        kinds = [each.dtype for each in (node, *node.args)]
        rounds = node.op in _OF_DTYPE or not all(jnp.issubdtype(k, jnp.floating) for k in kinds)
        full = " ".join([name or node.op, *map(str, kinds * rounds)])
        if node.params and name is None:
            number = reals.names.setdefault((node.op, node.params), len(reals.names))
            full = f"{full} {number}"
        whole = known.get("whole", not jnp.issubdtype(node.dtype, jnp.floating))
        nonneg = known.get("nonneg", False)
        result = reals.algebra.selected(
            args,
            lambda args: reals.algebra.call("function", full, args, whole=whole, nonneg=nonneg),
        )
        return reals.algebra.positive(result) if node.dtype == np.bool_ else result

    return entry


def _rounded(reals: Reals, node: Node, args: list[Rat]) -> Rat:
    """Functions that leave whole numbers alone."""
    atoms = [reals.algebra.atoms[gen] for gen in reals.algebra.atoms_of(*args)]
    numbers = [c for c in (*args[0].num.coeffs(), *args[0].den.coeffs())]
    whole = all(atom.whole for atom in atoms) and all(number.q == 1 for number in numbers)
    whole = whole and args[0].den.is_constant()
    if whole and node.op != "convert_element_type":
        return args[0]
    if whole and is_wide(node.dtype):
        reals.algebra.assumptions[NO_OVERFLOW] = None
        return args[0]
    return _call("trunc" if node.op == "convert_element_type" else None, whole=True)(
        reals, node, args
    )


def _convert(reals: Reals, node: Node, args: list[Rat]) -> Rat:
    source, target = node.args[0].dtype, node.dtype
    if target == np.bool_:
        return reals.algebra.complement(reals.algebra.zero(args[0]))
    if not jnp.issubdtype(source, jnp.inexact) and jnp.issubdtype(target, jnp.integer):
        fits = holds(source, target) or (
            jnp.iinfo(target).max >= jnp.iinfo(source).max and reals.algebra.nonneg(args[0])
        )
        return args[0] if fits else _call("as", whole=True)(reals, node, args)
    both = all(jnp.issubdtype(dtype, jnp.floating) for dtype in (source, target))
    if both and jnp.finfo(target).bits < jnp.finfo(source).bits:
        told = f"rounding to {jnp.dtype(target)} is left out, as all rounding"
        reals.algebra.assumptions[told] = None
    if jnp.issubdtype(source, jnp.floating) and jnp.issubdtype(target, jnp.integer):
        return _rounded(reals, node, args)
    if jnp.issubdtype(target, jnp.complexfloating) or jnp.issubdtype(source, jnp.complexfloating):
        raise Undecided("`convert_element_type` to or from complex numbers")
    return args[0]


def _reduced_precision(reals: Reals, node: Node, args: list[Rat]) -> Rat:
    bits = [node.settings[f"{part}_bits"] for part in ("exponent", "mantissa")]
    told = f"rounding to {bits[0]} bits of exponent and {bits[1]} of mantissa is left out"
    reals.algebra.assumptions[told] = None
    return args[0]


def _power(reals: Reals, node: Node, args: list[Rat]) -> Rat:
    if not jnp.issubdtype(node.dtype, jnp.floating):
        return _call()(reals, node, args)
    return reals.algebra.to_the(*args)


def _logic(of_bits: Callable[[Algebra, list[Rat]], Rat]) -> Callable[..., Rat]:
    def entry(reals: Reals, node: Node, args: list[Rat]) -> Rat:
        if node.dtype != np.bool_:
            return _call()(reals, node, args)
        return of_bits(reals.algebra, args)

    return entry


def _div(reals: Reals, node: Node, args: list[Rat]) -> Rat:
    if not jnp.issubdtype(node.dtype, jnp.floating):
        return _call("whole quotient", whole=True)(reals, node, args)
    return reals.algebra.div(*args)


def _log(algebra: Algebra, value: Rat) -> Rat:
    def of(args: list[Rat]) -> Rat:
        algebra.assume(args[0], "is more than 0")
        if (inner := algebra.argument_of(args[0], "exp")) is not None:
            return inner
        return algebra.call("function", "log", args)

    return algebra.selected([value], of)


def _exp(algebra: Algebra, value: Rat) -> Rat:
    def of(args: list[Rat]) -> Rat:
        if algebra.constant(args[0]) == 0:
            return algebra.number(1)
        if (inner := algebra.argument_of(args[0], "log")) is not None:
            return inner
        return algebra.call("function", "exp", args, nonneg=True)

    return algebra.selected([value], of)


def _sum_of_bits(algebra: Algebra, args: list[Rat], twice: int) -> Rat:
    """`a + b - twice * a * b`: with 1 the or of two bits, with 2 the exclusive one."""
    product = algebra.mul(*args)
    return algebra.sub(algebra.add(*args), algebra.mul(algebra.number(twice), product))


def _real(function: Callable[..., Rat]) -> Callable[..., Rat]:
    return lambda reals, node, args: function(reals.algebra, *args)


_SCALAR: dict[str, Callable[..., Rat]] = {
    "add": _real(Algebra.add),
    "sub": _real(Algebra.sub),
    "mul": _real(Algebra.mul),
    "neg": _real(Algebra.neg),
    "div": _div,
    "square": _real(lambda algebra, a: algebra.power(a, 2)),
    "integer_pow": lambda reals, node, args: reals.algebra.power(args[0], node.settings["y"]),
    "pow": _power,
    "sqrt": _real(Algebra.root),
    "rsqrt": _real(lambda algebra, a: algebra.div(algebra.number(1), algebra.root(a))),
    "cbrt": _call("cbrt"),
    "abs": _real(Algebra.absolute),
    "sign": _real(
        lambda algebra, a: algebra.sub(algebra.positive(a), algebra.positive(algebra.neg(a)))
    ),
    "exp": _real(_exp),
    "exp2": _real(lambda algebra, a: algebra.to_the(algebra.number(2), a)),
    "expm1": _real(lambda algebra, a: algebra.sub(_exp(algebra, a), algebra.number(1))),
    "log": _real(_log),
    "log1p": _real(lambda algebra, a: _log(algebra, algebra.add(a, algebra.number(1)))),
    "logistic": _real(
        lambda algebra, a: algebra.div(
            algebra.number(1), algebra.add(algebra.number(1), _exp(algebra, algebra.neg(a)))
        )
    ),
    "convert_element_type": _convert,
    "reduce_precision": _reduced_precision,
    "and": _logic(lambda algebra, args: algebra.mul(*args)),
    "or": _logic(lambda algebra, args: _sum_of_bits(algebra, args, 1)),
    "xor": _logic(lambda algebra, args: _sum_of_bits(algebra, args, 2)),
    "not": _logic(lambda algebra, args: algebra.complement(args[0])),
}
_SCALAR |= dict.fromkeys(_WHOLE, _rounded)
_SCALAR |= {
    name: _call()
    for name in [
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cos",
        "cosh",
        "digamma",
        "erf",
        "erf_inv",
        "erfc",
        "lgamma",
        "nextafter",
        "population_count",
        "rem",
        "shift_left",
        "shift_right_arithmetic",
        "shift_right_logical",
        "sin",
        "sinh",
        "tan",
        "tanh",
    ]
}
_SHAPES: dict[str, Callable[[Reals, Node, tuple[Index, ...]], Rat]] = {
    "leaf": Reals.leaf,
    "const": Reals.const,
    "splat": Reals.splat,
    "broadcast_in_dim": Reals.broadcast,
    "transpose": Reals.transpose,
    "reshape": Reals.reshape,
    "iota": Reals.iota,
    "reduce_sum": Reals.reduce_sum,
    "reduce_and": Reals.reduce_bool,
    "reduce_or": Reals.reduce_bool,
    "reduce_max": Reals.reduce_bool,
    "reduce_min": Reals.reduce_bool,
    "dot_general": Reals.dot_general,
    "concatenate": Reals.concatenate,
    "slice": Reals.slice,
}

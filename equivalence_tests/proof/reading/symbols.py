"""Hyper-parameters as symbols, also where a program compares one, and uninterpreted functions."""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from equivalence_tests.proof.node import UNKNOWN


class Questions:
    """The comparisons of symbols with numbers that programs have made: `(name, number)`."""

    def __init__(self):
        self.asked: dict[tuple[str, float], None] = {}


class NotASymbol(TypeError):
    """A program branches on a hyper-parameter otherwise than by asking whether it is a number."""

    def __init__(self, name: str, what: str):
        super().__init__(f"{name}: {what} decides in Python what the program is")
        self.name = name


class Symbol:
    """A number that is not known: arithmetic with it is traced, `== 0` is answered with no."""

    __array_priority__ = 1000
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, name: str, traced: jax.Array, questions: Questions):
        self.name, self.traced, self._questions = name, traced, questions

    def __jax_array__(self) -> jax.Array:
        return self.traced

    def __repr__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> Any:
        return self._compare(other, False)

    def __ne__(self, other: object) -> Any:
        return self._compare(other, True)

    def _compare(self, other: object, answer: bool) -> Any:
        if isinstance(other, bool | int | float):
            self._questions.asked[(self.name, float(other))] = None
            return answer
        if other is None or isinstance(other, str):
            return answer
        compared = jnp.not_equal if answer else jnp.equal
        return compared(self.traced, unwrap(other))

    def __bool__(self) -> bool:
        return bool(self != 0)

    def __float__(self) -> float:
        raise NotASymbol(self.name, "its value as a Python number")

    __int__ = __index__ = __float__  # type: ignore[assignment]

    def _order(self, other: object) -> bool:
        raise NotASymbol(self.name, "a comparison by size")

    __lt__ = __le__ = __gt__ = __ge__ = _order

    def __neg__(self) -> jax.Array:
        return -self.traced

    def __abs__(self) -> jax.Array:
        return abs(self.traced)


def _binary(
    function: Callable[[Any, Any], jax.Array],
) -> tuple[Callable[[Symbol, object], jax.Array], Callable[[Symbol, object], jax.Array]]:
    def forward(self: Symbol, other: object) -> jax.Array:
        return function(self.traced, unwrap(other))

    def backward(self: Symbol, other: object) -> jax.Array:
        return function(unwrap(other), self.traced)

    return forward, backward


for _name, _function in {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "pow": operator.pow,
}.items():
    _forward, _backward = _binary(_function)
    setattr(Symbol, f"__{_name}__", _forward)
    setattr(Symbol, f"__r{_name}__", _backward)


# JAX takes symbols apart where a function of its own is called with one.
jax.tree_util.register_pytree_node(
    Symbol,
    lambda symbol: ((symbol.traced,), (symbol.name, symbol._questions)),
    lambda aux, children: Symbol(aux[0], children[0], aux[1]),
)


def unwrap(value: object) -> Any:
    """The traced value of a symbol, or the value itself."""
    return value.traced if isinstance(value, Symbol) else value


def unknown_schedule(name: str) -> Callable[[Any], jax.Array]:
    """A schedule of which a proof knows nothing, so that it holds for every one.

        rate = unknown_schedule("rate")
        prove_equivalence(optax_bridge.adam(rate), optax.adam(rate), params)

    Args:
      name: of the schedule; schedules of one name are one.

    Returns:
      A function of the count. Where it is run, for a counterexample, it is 1 / (2 + count).
    """

    def schedule(count: Any) -> jax.Array:
        return 1 / (2 + jnp.asarray(count, jnp.result_type(float)))

    schedule.__name__ = f"{UNKNOWN}{name}"
    return jax.jit(schedule)

"""Shared by tests of proofs: a pair's proof with its certificate checked, small optimizers."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
import pytest

import optax_bridge
from equivalence_tests.proof.certificate.check import check
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.reading.sides import MakeSide
from equivalence_tests.proof.result import IDENTICAL, REALS, UNDECIDED, Proof
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.metadata.trees import Leaf, OptState, PyTree, Updates

PARAMS = {"b": jnp.ones(3), "k": jnp.ones((2, 3))}
NUMBERS = {"rate": 1e-3, "decay": 0.1}
Pair = Callable[[], tuple[SideLike, SideLike]]
UpdateFn = Callable[..., tuple[Updates, OptState]]
T = TypeVar("T")


def assert_proved(
    left: SideLike | MakeSide, right: SideLike | MakeSide, verdict: str, **options: Any
) -> Proof:
    """The proof, whose certificate an independent evaluation agrees with."""
    proof = prove_equivalence(left, right, PARAMS, **options)
    assert proof.verdict == verdict, proof
    options.pop("relation", None)
    checked = check(proof.to_json(), left, right, PARAMS, points=1, steps=2, **options)
    if verdict in (IDENTICAL, REALS):
        assert checked.values > 0
        assert verdict == REALS or checked.bits > 0
    return proof


def train_state(tx: Any, **options: Any) -> optax_bridge.FullTrainState:
    """A TrainState of the parameters."""
    return optax_bridge.FullTrainState.create(apply_fn=None, params=PARAMS, tx=tx, **options)


def some_or_all(config: pytest.Config, names: Sequence[T], every: int) -> Sequence[T]:
    """One name in so many, but all under `--equivalence-full`."""
    return names if config.getoption("--equivalence-full") else names[::every]


class EqualPairs(dict[str, Pair]):
    """Pairs of optimizers that are equal, by their names, each made when it is asked for."""

    def register(self, name: str) -> Callable[[Pair], None]:
        """Returns a decorator for the function that makes a pair."""

        def add(make: Pair) -> None:
            assert name not in self
            self[name] = make

        return add

    def some_or_all(self, config: pytest.Config, undecided: Sequence[str]) -> Sequence[str]:
        """Names of some pairs that are proved, or of all."""
        if config.getoption("--equivalence-full"):
            return list(self)
        return [name for name in self if name not in undecided][::12]

    def check_pair(self, name: str, undecided: Sequence[str]) -> None:
        """Asserts that a pair is proved, its certificate too, or still is one of the undecided."""
        proof = prove_equivalence(*self[name](), PARAMS)
        if name in undecided:
            assert proof.verdict == UNDECIDED, f"{name} is decided now: take it off the list"
            assert all(each.equality.stopped for case in proof.cases for each in case.open)
            return
        assert proof.verdict in (IDENTICAL, REALS), proof
        check(proof.to_json(), *self[name](), PARAMS, points=1, steps=2)


EQUAL_PAIRS = EqualPairs()


def transformation(init: Callable[..., OptState], update: UpdateFn) -> optax.GradientTransformation:
    """A transformation whose functions have no types."""
    return optax.GradientTransformation(init, update)


def rule(f: Callable[..., tuple[Leaf, ...]], *starts: float) -> optax.GradientTransformation:
    """An optimizer of a leaf's rule, whose moments start as these numbers."""

    def init(params: PyTree) -> OptState:
        return jnp.zeros((), jnp.int32), *(
            jax.tree.map(lambda p, start=start: jnp.full_like(p, start), params) for start in starts
        )

    def update(grads: Updates, state: OptState, params: PyTree = None) -> tuple[Updates, OptState]:
        count = state[0] + 1
        leaves, tree = jax.tree.flatten(grads)
        parts = [jax.tree.leaves(part) for part in (params, *state[1:])]
        rows = [f(count, *row) for row in zip(leaves, *parts, strict=True)]
        columns = [tree.unflatten(column) for column in zip(*rows, strict=True)]
        return columns[0], (count, *columns[1:])

    return transformation(init, update)


def leafwise(step: Callable[[Leaf, Leaf], Leaf]) -> tuple[Callable[..., PyTree], ...]:
    """A pair of functions without a state, of a leaf's step: from parameter and gradient."""
    return lambda params: (), lambda grads, state, params: (
        jax.tree.map(step, params, grads),
        state,
    )


def direct(f: Callable[[Leaf], Leaf]) -> optax.GradientTransformation:
    """An optimizer of the gradients alone, leaf by leaf."""
    return optax.stateless(lambda grads, params: jax.tree.map(f, grads))


def whole(f: Callable[[Updates], Updates]) -> optax.GradientTransformation:
    """An optimizer of the gradients alone, of all leaves at once."""
    return optax.stateless(lambda grads, params: f(grads))


def with_schedule(schedule: Callable[[Leaf], Leaf]) -> optax.GradientTransformation:
    """Gradient descent whose rate depends on the number of steps before."""
    return rule(lambda t, g, p: (-schedule(t - 1) * g,))

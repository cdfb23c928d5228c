"""Shared by tests of proofs: a proof that runs bear out, small optimizers."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import optax_bridge
from equivalence_tests import Verdict, check_equivalence
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.reading.sides import MakeSide
from equivalence_tests.proof.result import IDENTICAL, REALS, Proof
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.metadata.trees import Leaf, OptState, PyTree, Updates

PARAMS = {"b": jnp.ones(3), "k": jnp.ones((2, 3))}
NUMBERS = {"rate": 1e-3, "decay": 0.1}
Pair = Callable[[], tuple[SideLike, SideLike]]
UpdateFn = Callable[..., tuple[Updates, OptState]]


def assert_proved(
    left: SideLike | MakeSide, right: SideLike | MakeSide, verdict: str, **options: Any
) -> Proof:
    """The proof of two sides that are equal where they are run, too."""
    proof = prove_equivalence(left, right, PARAMS, **options)
    assert proof.verdict == verdict, proof
    numbers = options.get("hyper_params")
    assert_runs_agree(*((left, right) if numbers is None else (left(numbers), right(numbers))))  # type: ignore[operator]
    return proof


def text_of(proof: Proof) -> str:
    """A proof as text, without times, the sides' types, and the scope, which takes long to find."""
    lines = [proof.verdict]
    if proof.verdict in (IDENTICAL, REALS):
        general = all(each.equality.general for each in proof.obligations)
        steps = {f"{case.induction.most_steps} steps" for case in proof.cases} - {"None steps"}
        lines += ["  " + ", ".join(["any shape" if general else "these shapes", *sorted(steps)])]
        lines += [f"  assumes {text}" for text in proof.assumptions[1:]]
        related = dict.fromkeys(text for case in proof.cases for text in case.induction.relation)
        pairs = [text for text in related if len({*text.split(" = ")}) > 1]
        lines += [f"  related {text}" for text in pairs]
    else:
        lines += str(proof).splitlines()[1:]
    number = re.compile(r"\d+\.\d{7,}(e[-+]\d+)?")
    return number.sub(lambda digits: f"{float(digits[0]):.6g}", "\n".join(lines))


def assert_runs_agree(left: SideLike, right: SideLike) -> None:
    """Asserts that two sides, run, have the same parameters up to rounding."""
    rng = np.random.default_rng(0)
    grads = {k: rng.normal(size=(8, *p.shape)).astype(np.float32) for k, p in PARAMS.items()}
    report = check_equivalence(left, right, PARAMS, gradients=grads, decide=False)
    assert report.parameters is not None
    assert report.parameters.within(report.bound) is not Verdict.DIFFERENT, report


def train_state(tx: Any, **options: Any) -> optax_bridge.FullTrainState:
    """A TrainState of the parameters."""
    return optax_bridge.FullTrainState.create(apply_fn=None, params=PARAMS, tx=tx, **options)


class EqualPairs(dict[str, Pair]):
    """Pairs of optimizers that are equal, by their names, each made when it is asked for."""

    def register(self, name: str) -> Callable[[Pair], None]:
        """Returns a decorator for the function that makes a pair."""

        def add(make: Pair) -> None:
            assert name not in self
            self[name] = make

        return add


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


def counting(
    dtype: Any,
    step: Callable[..., Leaf],
    start: int = 0,
    after: Callable[[Leaf], Leaf] = lambda count: count + 1,
) -> Any:
    """A pair of functions whose state is a count, of a leaf's step with the count."""

    def all_leaves(grads: Updates, count: Leaf, params: PyTree) -> PyTree:
        return jax.tree.map(lambda p, g: step(p, g, count), params, grads), after(count)

    return lambda params: jnp.asarray(start, dtype), all_leaves


def steps(step: Callable[..., Leaf]) -> Any:
    """As `counting`, with a count of int32 from 0."""
    return counting(jnp.int32, step)

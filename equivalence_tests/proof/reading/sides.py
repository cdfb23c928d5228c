"""A user's side as two programs: one for the start, one for a step.

The one place of the prover that knows what sides there are.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.extend import core

import legacy_optim
from equivalence_tests.proof.dtypes import Aval
from equivalence_tests.proof.errors import ProofError
from equivalence_tests.proof.reading.symbols import (
    NotASymbol,
    Questions,
    Symbol,
    unwrap,
)
from equivalence_tests.sides.adapt import EquivalenceError, SideLike, as_side
from equivalence_tests.sides.same_program import NOT_PURE, is_same_program
from optax_bridge.cli.errors import error_text, first_line_of
from optax_bridge.metadata.trees import Leaf, Params, PyTree, Updates

# A side, or a function from hyper-parameters to one.
MakeSide = Callable[[Mapping[str, Any]], SideLike]


# From hyper-parameters and the left side's state to the right one's.
Relate = Callable[[Mapping[str, Any], PyTree], PyTree]
Leaves = list[jax.Array]


# Names of other inputs in formulas.
_TAKEN = re.compile(r"(params|grads|state)\b|count\b|(node|constant) \d")


@dataclass(frozen=True)
class Program:
    """One side as jaxprs."""

    name: str
    kind: str
    start: core.ClosedJaxpr
    step: core.ClosedJaxpr
    paths: tuple[str, ...]
    avals: tuple[jax.ShapeDtypeStruct, ...]
    asked: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Inputs:
    """The inputs that both sides get."""

    params: Params
    paths: tuple[str, ...]
    numbers: Mapping[str, float]
    fixed: Mapping[str, float]

    @property
    def shapes(self) -> list[jax.ShapeDtypeStruct]:
        """The parameters' leaves."""
        return jax.tree.leaves(self.params)

    @property
    def wide(self) -> "Inputs":
        """The same in float64."""
        shapes = [jax.ShapeDtypeStruct(leaf.shape, np.float64) for leaf in self.shapes]
        return replace(self, params=jax.tree.unflatten(jax.tree.structure(self.params), shapes))


def check_inputs(params: Params, hyper_params: Mapping[str, float] | None) -> Inputs:
    """Checks parameters and hyper-parameters."""
    rows = jax.tree_util.tree_leaves_with_path(params)
    if not rows:
        raise ProofError("params: found no leaf; expected a tree of floating-point arrays")
    paths = tuple(f"params{jax.tree_util.keystr(path)}" for path, _ in rows)
    for name, (_, leaf) in zip(paths, rows, strict=True):
        try:
            shape, dtype = jnp.shape(leaf), getattr(leaf, "dtype", None) or jnp.result_type(leaf)
        except TypeError:
            raise ProofError(
                f"{name}: expected an array or its shape and dtype, found {type(leaf).__name__}"
            ) from None
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ProofError(
                f"{name}: expected a floating-point dtype, found {dtype}; leave out what is not "
                "optimized"
            )
        if 0 in shape:
            raise ProofError(
                f"{name}: shape {shape} has no elements, so nothing can be said of it; leave it "
                "out, or give a shape with elements"
            )
    if hyper_params is not None and not isinstance(hyper_params, Mapping):
        raise ProofError(
            f"hyper_params: expected a mapping of names to numbers, found "
            f"{type(hyper_params).__name__}"
        )
    for name, value in (hyper_params or {}).items():
        if _TAKEN.match(name):
            raise ProofError(
                f"hyper_params[{name!r}]: a formula would not tell it from what is called so in "
                "the proof; give it another name"
            )
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            raise ProofError(
                f"hyper_params[{name!r}]: expected a number, found {type(value).__name__}; leave "
                "out what is no number, and set it inside of the side"
            )

    def shape_and_dtype(leaf: Leaf) -> jax.ShapeDtypeStruct:
        dtype = getattr(leaf, "dtype", None) or jnp.result_type(leaf)
        return jax.ShapeDtypeStruct(jnp.shape(leaf), dtype)

    numbers = {name: float(value) for name, value in (hyper_params or {}).items()}
    return Inputs(jax.tree.map(shape_and_dtype, params), paths, numbers, {})


@dataclass(frozen=True)
class _Functions:
    """A side as functions, for one trace."""

    kind: str
    start: Callable[[Params], PyTree]
    step: Callable[[PyTree, Updates], PyTree]
    params: Callable[[PyTree], Params]


def _functions_of(side: SideLike) -> _Functions:
    if isinstance(side, legacy_optim.OptimizerDef):  # its state must not have symbols in it

        def start(params: Params) -> PyTree:
            return params, side.init_state(params)

        def step(state: PyTree, grads: Updates) -> PyTree:
            return side.apply_gradient(side.hyper_params, state[0], state[1], grads)

        return _Functions(type(side).__name__, start, step, lambda state: state[0])
    adapter = as_side(side)
    return _Functions(
        adapter.name, adapter.init, adapter.step, lambda state: adapter.view(state)["params"]
    )


def _build(
    make: MakeSide, inputs: Inputs, numbers: Mapping[str, Any], questions: Questions | None
) -> _Functions:
    if questions is not None:
        numbers = {name: Symbol(name, value, questions) for name, value in numbers.items()}
    return _functions_of(make({**numbers, **inputs.fixed}))


def trace_side(make: MakeSide, inputs: Inputs, name: str) -> Program:
    """A side's programs; symbols that answer questions only where there are questions."""
    try:
        return _trace(make, inputs, name, None)
    except _DecidesByValue:
        return _trace(make, inputs, name, Questions())


def _trace(make: MakeSide, inputs: Inputs, name: str, questions: Questions | None) -> Program:
    numbers = {key: float(value) for key, value in inputs.numbers.items()}
    can_ask = bool(numbers) and questions is None
    seen: dict[str, Any] = {}

    def start(hyper_params: Mapping[str, Any], params: Params) -> tuple[Leaves, Leaves]:
        side = _build(make, inputs, hyper_params, questions)
        state = side.start(params)
        rows = jax.tree_util.tree_flatten_with_path(state)[0]
        paths = [jax.tree_util.keystr(path) for path, _ in rows]
        seen.update(kind=side.kind, paths=paths, structure=jax.tree.structure(state))
        return _arrays(state), _arrays(side.params(state))

    def step(
        hyper_params: Mapping[str, Any], leaves: Leaves, grads: Updates
    ) -> tuple[Leaves, Leaves]:
        side = _build(make, inputs, hyper_params, questions)
        structure = seen["structure"]
        if inputs.numbers or inputs.fixed:  # a side of its own, that has made no start and no step
            structure = jax.tree.structure(jax.eval_shape(side.start, inputs.params))
            if "after" in seen:
                jax.eval_shape(lambda *args: side.step(*args), structure.unflatten(leaves), grads)
        state = side.step(structure.unflatten(leaves), grads)
        seen.update(
            after=[jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)],
            structures=(structure, jax.tree.structure(state)),
        )
        return _arrays(state), _arrays(side.params(state))

    with _with_explanation(f"{name} side, at its start", can_ask):
        first, shapes = _program_and_types(start, numbers, inputs.params)
    where = f"{name} side ({seen['kind']})"
    with _with_explanation(f"{where}, in its step", can_ask):
        second, after = _program_and_types(step, numbers, shapes[0], inputs.params)
    _refuse_other_structure(where, seen)
    _refuse_other_types(where, seen["paths"], shapes[0], after[0])
    with _with_explanation(f"{where}, in its second step", can_ask):
        later, _ = _program_and_types(lambda *args: step(*args), numbers, after[0], inputs.params)
    if not is_same_program(second, later):
        pairs = zip(seen["paths"], shapes[0], after[0], strict=True)
        weak = [path for path, old, new in pairs if old.weak_type != new.weak_type]
        raise ProofError(f"{where}: {_why_another_program(weak)}")
    for paths, shown in ((inputs.paths, shapes[1]), (inputs.paths, after[1])):
        actual = [(leaf.shape, leaf.dtype) for leaf in shown]
        if actual != [(leaf.shape, leaf.dtype) for leaf in inputs.shapes]:
            raise ProofError(f"{where}: its parameters are no longer like {', '.join(paths)[:200]}")
    return Program(
        name,
        seen["kind"],
        first,
        second,
        tuple(seen["paths"]),
        tuple(shapes[0]),
        tuple(questions.asked) if questions is not None else (),
    )


def _program_and_types(
    function: Callable[..., PyTree], *args: PyTree
) -> tuple[core.ClosedJaxpr, PyTree]:
    """A program and the types of its results; JAX 0.9 leaves weak types out of `return_shape`."""
    program, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
    for var, const in zip(program.jaxpr.constvars, program.consts, strict=True):
        if isinstance(const, jax.core.Tracer):
            raise EquivalenceError(
                f"it reads an array, {var.aval.str_short()}, that an earlier call has left in "
                "Python, so that each step is another program. Keep it in the state"
            )
        if not isinstance(var.aval, jax.core.ShapedArray):
            raise EquivalenceError(f"it holds {var.aval}, which changes in place; use the state")
    types = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
        for aval in program.out_avals
    ]
    return program, jax.tree.unflatten(jax.tree.structure(shapes), types)


def _why_another_program(weak: Sequence[str]) -> str:
    if weak:
        return (
            f"the first step is another program than the next, since `{weak[0]}` is weakly typed "
            "before it, or after it, alone; start it as an array of its dtype"
        )
    return NOT_PURE


def _refuse_other_structure(where: str, seen: Mapping[str, Any]) -> None:
    """Refuses a step that changes what it holds apart from the arrays' numbers."""
    if seen["after"] != seen["paths"]:
        gone = sorted(set(seen["after"]) ^ set(seen["paths"]))
        raise ProofError(f"{where}: a step changes the structure of what it holds: {gone[:5]}")
    if seen["structures"][0] != seen["structures"][1]:
        raise ProofError(
            f"{where}: a step changes what it holds apart from arrays, so that the next one may be "
            f"another program: {_first_difference(*map(str, seen['structures']))}. Keep it in an "
            "array of the state"
        )


def _refuse_other_types(
    where: str, paths: Sequence[str], before: Sequence[Aval], after: Sequence[Aval]
) -> None:
    """Refuses a step that changes the shape or the dtype of what it holds."""
    for path, old, new in zip(paths, before, after, strict=True):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ProofError(
                f"{where}: a step makes of `{path}`, {old.dtype}{list(old.shape)}, "
                f"{new.dtype}{list(new.shape)}; a proof by induction needs one type"
            )


def trace_relation(
    relate: Relate, make: MakeSide, inputs: Inputs, right: Program
) -> core.ClosedJaxpr:
    """A given relation as a program: (hyper-parameters, left leaves) -> right leaves."""

    def start(params: Params, numbers: Mapping[str, float]) -> PyTree:
        try:
            return _build(make, inputs, numbers, None).start(params)
        except jax.errors.ConcretizationTypeError:
            return _build(make, inputs, numbers, Questions()).start(params)

    leaves, structure = jax.tree.flatten(jax.eval_shape(start, inputs.params, dict(inputs.numbers)))

    def program_of_relation(hyper_params: Mapping[str, Any], leaves: Leaves) -> Leaves:
        related_state = relate({**hyper_params, **inputs.fixed}, structure.unflatten(leaves))
        return _arrays(related_state)

    with _with_explanation("the relation of the states"):
        program, shapes = jax.make_jaxpr(program_of_relation, return_shape=True)(
            dict(inputs.numbers), leaves
        )
    actual = [(leaf.shape, leaf.dtype) for leaf in shapes]
    if actual != [(leaf.shape, leaf.dtype) for leaf in right.avals]:
        raise ProofError(
            "relation: expected the leaves that the right side holds, "
            f"{', '.join(map(_leaf_text, right.avals, right.paths))}; "
            f"found {', '.join(map(_leaf_text, shapes))}"
        )
    return program


def _first_difference(one: str, other: str) -> str:
    """Returns what follows where two texts begin to differ, and a little before it."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    start = max(0, len(list(same)) - 20)
    return f"...{one[start : start + 60]} -> ...{other[start : start + 60]}"


def _leaf_text(leaf: Aval, path: str = "") -> str:
    return f"{path}{': ' if path else ''}{leaf.dtype}{list(leaf.shape)}"


def _arrays(tree: PyTree) -> list[jax.Array]:
    return [jnp.asarray(unwrap(leaf)) for leaf in jax.tree.leaves(tree)]


class _DecidesByValue(Exception):
    """A side decides in Python by an array's value, which may be a hyper-parameter's."""


@contextlib.contextmanager
def _with_explanation(where: str, can_ask: bool = False) -> Iterator[None]:
    try:
        yield
    except (ProofError, NotASymbol):
        raise
    except EquivalenceError as error:
        raise ProofError(f"{where}: {error}") from None
    except jax.errors.TracerArrayConversionError as error:
        raise ProofError(
            f"{where}: it hands a traced array to NumPy, which computes outside of JAX and cannot "
            f"be seen; use jax.numpy there ({first_line_of(str(error))})"
        ) from None
    except jax.errors.ConcretizationTypeError as error:
        if can_ask:
            raise _DecidesByValue from None
        raise ProofError(
            f"{where}: it decides in Python by the value of an array; use jnp.where or "
            f"jax.lax.cond ({first_line_of(str(error))})"
        ) from None
    except Exception as error:
        raise ProofError(f"{where}: {error_text(error, first_line=True)}") from error

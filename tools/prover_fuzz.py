"""Random faults, of which none may be proved, and random rewrites, of which all should be.

    python -m tools.prover_fuzz --faults 500 --rewrites 200 --seed 0

A fault changes one operation, constant or operand of an optimizer's step. Whether it changes
anything is decided apart from the prover, by runs in float64 of both programs on random inputs.
A rewrite is a random expression written in another way that is the same over the reals.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend import core

import optax_bridge
from equivalence_tests.proof.errors import NoRule
from equivalence_tests.proof.interpreter import run as interpreter
from equivalence_tests.proof.prover import prove_equivalence
from equivalence_tests.proof.reading import programs
from equivalence_tests.proof.reading.programs import AnyJaxpr
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, REALS
from equivalence_tests.sides.precision import float64
from optax_bridge.exact.transformation import take_step
from optax_bridge.metadata.trees import OptState, Params, Updates

# A side: its start and its step.
Functions = tuple[Callable[..., Any], Callable[..., Any]]
PARAMS = {"b": np.ones(2), "k": np.ones((2, 3))}
OPTIMIZERS: dict[str, Callable[[], optax.GradientTransformation]] = {
    "adabelief": lambda: optax_bridge.adabelief(0.01, eps=1e-3, weight_decay=0.1),
    "adadelta": lambda: optax_bridge.adadelta(0.5, eps=1e-3),
    "adafactor": lambda: optax_bridge.adafactor(0.1, min_dim_size_to_factor=2, momentum=0.9),
    "adagrad": lambda: optax_bridge.adagrad(0.1),
    "adam": lambda: optax_bridge.adam(0.01, eps=1e-3, weight_decay=0.1),
    "lamb": lambda: optax_bridge.lamb(0.01, weight_decay=0.1, eps=1e-3),
    "lars": lambda: optax_bridge.lars(0.1, weight_decay=0.1, nesterov=True),
    "momentum": lambda: optax_bridge.momentum(0.1, weight_decay=0.1, nesterov=True),
    "rmsprop": lambda: optax_bridge.rmsprop(0.01, centered=True, eps=1e-3),
    "weight_norm": lambda: optax_bridge.weight_norm(optax_bridge.momentum(0.1), wn_decay=0.1),
    "adamw": lambda: optax.adamw(0.01, weight_decay=0.1),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)),
    "lion": lambda: optax.lion(0.01),
    "radam": lambda: optax.radam(0.01),
}


@dataclass(frozen=True)
class Optimizer:
    """A transformation whose step is a jaxpr without calls, in float64."""

    init: Callable[[Params], OptState]
    jaxpr: core.ClosedJaxpr
    state: Any

    def side(self, jaxpr: core.ClosedJaxpr) -> Functions:
        """A pair of functions whose step is another jaxpr."""
        structure = jax.tree.structure(PARAMS)

        def step(grads: Updates, state: OptState, params: Params) -> tuple[Params, OptState]:
            leaves = jax.tree.leaves((grads, state, params))
            results = core.jaxpr_as_fun(jaxpr)(*leaves)
            return structure.unflatten(results[: len(PARAMS)]), self.state.unflatten(
                results[len(PARAMS) :]
            )

        return self.init, step


def optimizer(name: str) -> Optimizer:
    """One of `OPTIMIZERS`; within `float64()`."""
    tx = OPTIMIZERS[name]()
    state = tx.init(jax.tree.map(jnp.asarray, PARAMS))
    jaxpr = jax.make_jaxpr(lambda g, s, p: take_step(tx, g, s, p))(PARAMS, state, PARAMS)
    flat = jax.make_jaxpr(lambda *args: _inline(jaxpr, args))(
        *jax.tree.leaves((PARAMS, state, PARAMS))
    )
    return Optimizer(tx.init, flat, jax.tree.structure(state))


def _inline(jaxpr: AnyJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
    """The results of a program, its calls taken apart."""
    inner, consts = programs.jaxpr_and_consts(jaxpr)
    values = dict(zip((*inner.constvars, *inner.invars), (*consts, *args), strict=True))

    def read(atom: core.Var | core.Literal) -> Any:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in inner.eqns:
        operands = [read(atom) for atom in eqn.invars]
        program = programs.callee(eqn)
        if program is not None:
            results = _inline(program, operands)
        else:
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in inner.outvars]


_SWAPS = {
    "add": ("sub", "mul"),
    "sub": ("add",),
    "mul": ("div", "add"),
    "div": ("mul",),
    "max": ("min",),
    "min": ("max",),
    "lt": ("gt", "le"),
    "gt": ("lt", "ge"),
    "le": ("ge", "lt"),
    "ge": ("le",),
    "sqrt": ("rsqrt", "abs"),
    "rsqrt": ("sqrt",),
    "square": ("abs", "neg"),
    "neg": ("abs",),
    "and": ("or",),
    "or": ("and",),
}
_PRIMITIVES = {
    name: getattr(jax.lax, f"{name}_p")
    for name in (*_SWAPS, "abs")
    if hasattr(jax.lax, f"{name}_p")
}


def fault(jaxpr: core.ClosedJaxpr, rng: np.random.Generator) -> tuple[core.ClosedJaxpr, str] | None:
    """A program with one change, and what was changed; None if there was nothing at that place."""
    inner = jaxpr.jaxpr
    position = int(rng.integers(len(inner.eqns)))
    eqn = inner.eqns[position]
    kind = rng.choice(["operation", "constant", "operand", "order"])
    name = eqn.primitive.name
    if kind == "operation":
        wanted = [swap for swap in _SWAPS.get(name, ()) if swap in _PRIMITIVES]
        if not wanted:
            return None
        swap = str(rng.choice(wanted))
        params = {} if swap in ("rsqrt", "sqrt", "abs", "neg") else dict(eqn.params)
        if swap in ("rsqrt", "sqrt"):
            params = {"accuracy": None} if "accuracy" in eqn.params else {}
        if swap in ("div", "add", "sub", "mul"):
            params = {}
        bound = _PRIMITIVES[swap]
        changed = eqn.replace(primitive=bound, params=_params_of(bound, eqn, params))
        text = f"{name} -> {swap}"
    elif kind == "constant":
        positions = [i for i, atom in enumerate(eqn.invars) if _is_number(atom)]
        if not positions:
            return None
        at = int(rng.choice(positions))
        literal = eqn.invars[at]
        factor = float(rng.choice([2.0, 0.5, 1.01, -1.0, 0.0, 1.5]))
        value = np.asarray(np.asarray(literal.val) * factor).astype(literal.aval.dtype)
        invars = list(eqn.invars)
        invars[at] = core.Literal(value[()], literal.aval)
        changed, text = eqn.replace(invars=invars), f"{name}: {literal.val} * {factor}"
    elif kind == "operand":
        inputs = [*inner.invars, *(v for e in inner.eqns[:position] for v in e.outvars)]
        at = int(rng.integers(len(eqn.invars))) if eqn.invars else 0
        same = [v for v in inputs if eqn.invars and _alike(v, eqn.invars[at])]
        if not same:
            return None
        invars = list(eqn.invars)
        invars[at] = same[int(rng.integers(len(same)))]
        changed, text = eqn.replace(invars=invars), f"{name}: another operand {at}"
    else:
        if len(eqn.invars) < 2 or not _alike(eqn.invars[0], eqn.invars[1]):
            return None
        invars = [eqn.invars[1], eqn.invars[0], *eqn.invars[2:]]
        changed, text = eqn.replace(invars=invars), f"{name}: operands exchanged"
    eqns = [*inner.eqns[:position], changed, *inner.eqns[position + 1 :]]
    return jaxpr.replace(jaxpr=inner.replace(eqns=eqns)), f"equation {position}, {text}"


def _params_of(
    primitive: core.Primitive, eqn: core.JaxprEqn, fallback: dict[str, Any]
) -> dict[str, Any]:
    """The parameters that a primitive is bound with for operands like an equation's."""
    name = {"and": "bitwise_and", "or": "bitwise_or"}.get(primitive.name, primitive.name)
    function: Any = getattr(jax.lax, str(name), None)
    if function is None:
        return fallback
    shape = programs.aval_of(eqn.outvars[0]).shape
    spread = [jnp.zeros(shape, programs.aval_of(var).dtype) for var in eqn.invars]
    outcome = jax.make_jaxpr(function)(*spread).eqns
    equations = [equation for equation in outcome if equation.primitive is primitive]
    return dict(equations[0].params) if equations else fallback


def _is_number(atom: core.Var | core.Literal) -> bool:
    dtype = programs.aval_of(atom).dtype
    return isinstance(atom, core.Literal) and jnp.issubdtype(dtype, jnp.number)


def _alike(a: core.Var | core.Literal, b: core.Var | core.Literal) -> bool:
    left, right = programs.aval_of(a), programs.aval_of(b)
    return (left.shape, left.dtype) == (right.shape, right.dtype) and a is not b


def differ_in_runs(tx: Optimizer, jaxpr: core.ClosedJaxpr, rng: np.random.Generator) -> bool:
    """True if runs in float64 on random inputs differ by more than rounding."""
    count = len(PARAMS)
    for _ in range(2):
        params = [np.asarray(rng.standard_normal(np.shape(v))) for v in PARAMS.values()]
        tree = jax.tree.unflatten(jax.tree.structure(PARAMS), params)
        start = [np.asarray(leaf) for leaf in jax.tree.leaves(tx.init(tree))]
        states = [[*start, *params], [*start, *params]]
        for _ in range(4):
            grads = [np.asarray(rng.standard_normal(np.shape(v))) for v in PARAMS.values()]
            for i, program in enumerate((tx.jaxpr, jaxpr)):
                results = interpreter.run(program, [*grads, *states[i]])
                states[i] = [*results[count:], *results[:count]]
            for a, b in zip(states[0][-count:], states[1][-count:], strict=True):
                a, b = np.asarray(a, float), np.asarray(b, float)
                if not np.array_equal(np.isnan(a), np.isnan(b)):
                    return True
                with np.errstate(all="ignore"):
                    size = np.max(np.abs(a), where=np.isfinite(a), initial=1e-3)
                    if np.nanmax(np.abs(np.where(a == b, 0, a - b)), initial=0.0) > 1e-9 * size:
                        return True
    return False


def faults(count: int, seed: int) -> Iterator[tuple[str, str, bool, str]]:
    """Random faults: the optimizer, the fault, whether runs tell it apart, and the verdict."""
    rng = np.random.default_rng(seed)
    optimizers: dict[str, Optimizer] = {}
    done = 0
    with float64():
        while done < count:
            name = str(rng.choice(list(OPTIMIZERS)))
            if name not in optimizers:
                optimizers[name] = optimizer(name)
            outcome = fault(optimizers[name].jaxpr, rng)
            if outcome is None:
                continue
            jaxpr, text = outcome
            try:
                differs = differ_in_runs(optimizers[name], jaxpr, rng)
            except NoRule:
                continue
            sides = optimizers[name].side(optimizers[name].jaxpr), optimizers[name].side(jaxpr)
            proof = prove_equivalence(*sides, PARAMS)
            done += 1
            yield name, text, differs, proof.verdict


# Expressions are nested tuples: ("add", a, b), ("mul", a, b), ... over "p", "g", "s" and numbers.
_UNARY: dict[str, Callable[[jax.Array], jax.Array]] = {
    "square": jnp.square,
    "sqrt": lambda x: jnp.sqrt(1 + jnp.square(x)),
    "abs": jnp.abs,
    "sum": lambda x: jnp.sum(x) * jnp.ones_like(x),
    "exp": lambda x: jnp.exp(jnp.tanh(x)),
}
_BINARY: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / (2 + jnp.square(b)),
    "over": lambda a, b: a / b,
    "max": jnp.maximum,
    "where": lambda a, b: jnp.where(a > b, a, 2 * b),
}
_NEEDED = {"over"}  # made by rewrites alone, over what is not 0


def expression(rng: np.random.Generator, depth: int) -> Any:
    """A random expression."""
    if depth == 0 or rng.random() < 0.1:
        leaf = rng.choice(["p", "g", "s", "number"])
        return float(rng.integers(1, 9)) / 4 if leaf == "number" else str(leaf)
    if rng.random() < 0.3:
        return (str(rng.choice(list(_UNARY))), expression(rng, depth - 1))
    name = str(rng.choice([name for name in _BINARY if name not in _NEEDED]))
    return (name, expression(rng, depth - 1), expression(rng, depth - 1))


def rewrite(tree: Any, rng: np.random.Generator) -> Any:
    """The same function of real numbers, written otherwise in many places."""
    if not isinstance(tree, tuple):
        return tree
    name, *args = tree
    args = [rewrite(arg, rng) for arg in args]
    choice = rng.random()
    if name in ("add", "mul", "max") and choice < 0.4:
        args = args[::-1]
    if name == "sub" and choice < 0.5:
        return ("add", args[0], ("mul", -1.0, args[1]))
    if name == "square" and choice < 0.6:
        return ("mul", args[0], args[0])
    if name == "mul":
        for first, second in (args, args[::-1]):
            if isinstance(second, tuple) and second[0] in ("add", "sub") and choice < 0.8:
                return (second[0], ("mul", first, second[1]), ("mul", first, second[2]))
    if name == "div" and choice < 0.5:
        return ("mul", args[0], ("over", 1.0, ("add", 2.0, ("square", args[1]))))
    if name == "add" and isinstance(args[0], tuple) and args[0][0] == "add" and choice < 0.9:
        return ("add", args[0][1], ("add", args[0][2], args[1]))
    if name == "sum" and isinstance(args[0], tuple) and args[0][0] == "add" and choice < 0.8:
        return ("add", ("sum", args[0][1]), ("sum", args[0][2]))
    scaled = name == "sum" and isinstance(args[0], tuple) and args[0][0] == "mul"
    if scaled and isinstance(args[0][1], float):
        return ("mul", args[0][1], ("sum", args[0][2]))
    return (name, *args)


def evaluate(tree: Any, values: dict[str, jax.Array]) -> jax.Array:
    """The value of an expression."""
    if isinstance(tree, str):
        return values[tree]
    if isinstance(tree, float):
        return jnp.full_like(values["p"], tree)
    name, *args = tree
    inner = [evaluate(arg, values) for arg in args]
    return _UNARY[name](*inner) if name in _UNARY else _BINARY[name](*inner)


def as_side(new_param: Any, new_state: Any) -> Functions:
    """An optimizer of one array whose step is two expressions."""

    def step(grads: jax.Array, state: jax.Array, params: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = {"p": params, "g": grads, "s": state}
        return evaluate(new_param, values), evaluate(new_state, values)

    return jnp.zeros_like, step


def rewrites(
    count: int, seed: int, depth: int = 4
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...], str]]:
    """Random expressions, each with one that is equal, and the verdict on the pair."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        trees = expression(rng, depth), expression(rng, 2)
        others = tuple(rewrite(tree, rng) for tree in trees)
        params = jax.ShapeDtypeStruct((2, 3), jnp.float32)
        proof = prove_equivalence(as_side(*trees), as_side(*others), params)
        yield trees, others, proof.verdict


def main() -> int:
    """Runs both and prints what came out; 1 if a fault was proved or a rewrite was not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--rewrites", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started, bad = time.perf_counter(), 0
    counts: Counter[tuple[bool, str]] = Counter()
    for name, text, differs, verdict in faults(options.faults, options.seed):
        counts[differs, verdict] += 1
        if differs and verdict in (IDENTICAL, REALS):
            bad += 1
            print(f"PROVED: {name}: {text}: {verdict}")
    for (differs, verdict), number in sorted(counts.items()):
        print(f"{number} faults that runs {'tell apart' if differs else 'do not see'}: {verdict}")
    verdicts: Counter[str] = Counter()
    for trees, others, verdict in rewrites(options.rewrites, options.seed):
        verdicts[verdict] += 1
        if verdict not in (IDENTICAL, REALS):
            bad += 1
            print(f"{verdict.upper()}: {trees} and {others}")
    for verdict, number in verdicts.items():
        print(f"{number} rewrites: {verdict}")
    print(f"{time.perf_counter() - started:.0f} s, {bad} wrong; different: {DIFFERENT}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

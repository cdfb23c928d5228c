"""`check_equivalence`: are two optimizers the same? For anyone's pair, at the desk and in CI."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from equivalence_tests.compare.comparison import (
    NOTICEABLE,
    Comparison,
    Verdict,
    compare,
    leaf_name,
)
from equivalence_tests.compare.relation import Relation, relations
from equivalence_tests.compare.trees import first_mismatch, is_numeric, shapes, signature
from equivalence_tests.report.pair import Report
from equivalence_tests.sides import gradients as given_gradients
from equivalence_tests.sides import problems
from equivalence_tests.sides.adapt import (
    EquivalenceError,
    SideLike,
    adapted,
    on_host,
)
from equivalence_tests.sides.gradients import Gradients, Stream
from equivalence_tests.sides.precision import float64, pinned
from equivalence_tests.sides.python_state import changed, plain_values
from equivalence_tests.sides.side import Side, in_legacy_layout
from equivalence_tests.sides.trajectory import driven, trajectory
from equivalence_tests.sides.widened import in_float64, wide
from optax_bridge.metadata.trees import Params, PyTree, Updates


def check_equivalence(
    left: SideLike,
    right: SideLike,
    params: Params,
    *,
    gradients: Gradients = "all",
    steps: int | None = None,
    bound: float = NOTICEABLE,
    decide: bool = True,
    names: tuple[str, str] = ("left", "right"),
) -> Report:
    """Runs two optimizers beside one another and says whether they are the same.

    Each side may be a legacy definition or optimizer, an `optax.GradientTransformation` (or
    another object with its `init` and `update`, as a second version of Optax makes), a
    `TrainState` (its optimizer state is kept, its parameters are replaced), or a pair of functions
    `init(params) -> state` and `step(grads, state, params) -> (params, state)`, which run as they
    are. An optimizer of PyTorch is a side as `torch_side(torch.optim.AdamW, lr=...)`, one of
    `jax.example_libraries.optimizers` as it is. Parameters are compared after every step; so is
    the state where both sides can show it in one layout.

        >>> params = {"w": jnp.ones(3)}
        >>> report = check_equivalence(optax.sgd(0.1), legacy_optim.GradientDescent(0.1), params)
        >>> report.verdict.value
        'identical'

    A side from another version of Optax, installed with `pip install --target older optax==0.2.5
    --no-deps`: import it with the present one put aside.

        def of_older():
            present = {name: sys.modules.pop(name) for name in [*sys.modules]
                       if name.split(".")[0] == "optax"}
            sys.path.insert(0, "older")
            try:
                return importlib.import_module("optax")
            finally:
                sys.path.remove("older")
                sys.modules.update(present)

        check_equivalence(of_older().adam(1e-3), optax.adam(1e-3), params)

    Args:
      left: one side.
      right: the other.
      params: initial parameters, any pytree of floating-point arrays; float64 ones are run so,
        whether or not JAX is set to it.
      gradients: a tree like `params` with a leading axis of steps; or a list or an iterator of such
        trees without that axis, one for each step; or a name in `problems.DESCRIPTIONS`, of which
        "all" has what optimizers have been seen to part on; or `function(step, params) ->
        gradients`, with which each side follows its own gradients.
      steps: number of steps; by default as many as `gradients` has, else 160.
      bound: the distance that still counts as rounding, in ULP at the tensor's scale, for 100
        steps. Whatever it is, more than 1/16 of the scale is not called rounding only: in bfloat16
        that is 8 ULP.
      decide: whether both sides run in float64 as well where they are not identical. Rounding
        shrinks with the precision, another algorithm does not.
      names: what messages and the report call the sides.

    Returns:
      The report: print it, or ask its `verdict`.

    Raises:
      EquivalenceError: something does not fit; the message names side, step and leaf.
    """
    if not isinstance(bound, int | float) or not bound >= 0:  # NaN is not either
        raise EquivalenceError(f"bound is {bound!r}; expected a distance in ULP, 0 or more")
    if isinstance(names, str) or len(names) != 2:
        raise EquivalenceError(f"names is {names!r}; expected two, one for each side")
    params = _checked_params(params)
    stream, steps = given_gradients.resolved(gradients, params, steps)
    sides = _alike(_named(left, names[0]), _named(right, names[1]))
    # Of gradients of their own: that they are not finite is what the sides came to.
    poisoned = {} if callable(gradients) else _poisoned(stream, params, steps)
    double = any(leaf.dtype == np.float64 for leaf in jax.tree.leaves(params))
    # Hostile gradients overflow, in a side that computes with NumPy as well.
    quiet, dtypes = np.errstate(all="ignore"), float64() if double else contextlib.nullcontext()
    with pinned() as what, dtypes, quiet:
        here = _compared(sides, names, params, stream, steps, poisoned)
        started = ""
        if here.moved < _SEEN and here.both.within(bound) is not Verdict.DIFFERENT:
            smaller = jax.tree.map(lambda leaf: leaf * leaf.dtype.type(_SMALLER), params)
            again = _compared(sides, names, smaller, stream, steps, poisoned)
            started = f"parameters / {1 / _SMALLER:.0f}, as those given hardly move"
            if not again.both.identical:
                here, params = again, smaller
        # States that are linearly related are no difference of the trainings.
        related = any(not each.is_equal(path) for path, each in here.relations.items())
        there, why = None, ""
        if decide and not (here.parameters if related else here.both).identical:
            closed = callable(gradients)
            there, why = _in_float64(sides, names, params, stream, steps, closed, poisoned)
    return Report(
        names=names,
        sources=(sides[0].source, sides[1].source),
        kinds=(sides[0].name, sides[1].name),
        steps=steps,
        bound=bound,
        comparison=here.both,
        state_compared=here.state_compared,
        wide=there and (there.parameters if related else there.both),
        about_wide=why,
        closed_loop=callable(gradients),
        pinned=what,
        tried=problems.DESCRIPTIONS[gradients] if isinstance(gradients, str) else "",
        started=started,
        finite=here.finite if here.finite < min([steps, *poisoned.values()]) else None,
        parameters=here.parameters,
        parameters_wide=there and there.parameters,
        relations=here.relations if related else {},
        counts=here.counts,
        signature=signature(params, "params"),
    )


def _poisoned(stream: Stream, params: Params, steps: int) -> dict[str, int]:
    """The first step at which given gradients are not finite, for `compare`."""
    for step in range(steps):
        if any(not np.isfinite(leaf).all() for leaf in jax.tree.leaves(stream(step, params))):
            return {"": step}
    return {}


def _named(side: SideLike, name: str) -> Side:
    try:
        return adapted(side)
    except EquivalenceError as error:
        raise EquivalenceError(f"{name} side: {error}") from None


def _alike(left: Side, right: Side) -> list[Side]:
    """The sides, with their states in the layout of the legacy one, where one is."""
    definition = left.definition or right.definition
    return [
        side
        if definition is None or side.definition is not None or not side.compiled
        else in_legacy_layout(side, definition)
        for side in (left, right)
    ]


def _checked_params(params: Params) -> Any:
    # A Python float has JAX's default dtype, as it would have in training.
    host = on_host(
        jax.tree.map(lambda x: jax.numpy.asarray(x) if isinstance(x, float) else x, params)
    )
    found = signature(host, "params")
    if not found:
        raise EquivalenceError("params: found no leaf; expected a tree of floating-point arrays")
    for path, (_, dtype) in found.items():
        if not jax.numpy.issubdtype(dtype, jax.numpy.floating):
            raise EquivalenceError(
                f"{path}: expected a floating-point dtype, found {dtype}; leave out what is not "
                "optimized"
            )
    if not any(np.size(leaf) for leaf in jax.tree.leaves(host)):
        raise EquivalenceError(
            f"params: found no element in {', '.join(found)}; expected some, as of none nothing "
            "can be compared"
        )
    return host


# Steps that are below the spacing of the parameters show nothing of what they are: where less than
# this part of them is seen, smaller parameters are tried as well.
_SEEN, _SMALLER = 0.2, 2.0**-8


def _moved(leaf: np.ndarray) -> float:
    """The part of a parameter's steps that changed it; 1 of one that is empty."""
    rows = leaf.reshape(len(leaf), -1)
    return float((rows[1:] != rows[:-1]).any(axis=1).mean()) if rows.size and len(rows) > 1 else 1.0


class _Outcome(NamedTuple):
    """What comparing two runs gave.

    Attributes:
      both: the comparison of parameters and, where the two have one structure, state.
      parameters: that of the parameters alone.
      state_compared: whether `both` covers the state.
      relations: of the states, where all their leaves are linearly related.
      moved: the part of the steps at which the parameters that move least changed.
      finite: the number of steps before the first after which a parameter is not finite.
      counts: counts that one state has in a dtype that goes no further than the text says.
    """

    both: Comparison
    parameters: Comparison
    state_compared: bool
    relations: Mapping[str, Relation]
    moved: float
    finite: int
    counts: tuple[str, ...] = ()


def _compared(
    sides: Sequence[Side],
    names: tuple[str, str],
    params: Params,
    stream: Stream,
    steps: int,
    poisoned: Mapping[str, int],
) -> _Outcome:
    runs = []
    for side, name in zip(sides, names, strict=True):
        checked = _Checked(side, name, params)
        rows = functools.partial(checked.gradients, stream)
        runs.append(trajectory(driven(checked.side(), "eager"), params, rows, steps))
    signatures = [signature(run["state"], "state") for run in runs]
    comparable = (
        bool(signatures[0])
        and signatures[0] == signatures[1]
        and all(is_numeric(dtype) for _, dtype in signatures[0].values())
    )
    try:
        parameters = compare(*({"params": run["params"]} for run in runs), poisoned=poisoned)
    except ValueError as error:
        raise EquivalenceError(f"{names[0]} and {names[1]} side: {error}") from None
    moved = min(map(_moved, jax.tree.leaves(runs[0]["params"])))
    finite = _finite([run["params"] for run in runs])
    if not comparable:
        counts = [
            text for run, name in zip(runs, names, strict=True) for text in _counts(run, name)
        ]
        return _Outcome(parameters, parameters, False, {}, moved, finite, tuple(counts))
    # Only what comes before a number that is not finite can be related.
    until = _finite(runs)
    related = relations(*(jax.tree.map(lambda leaf: leaf[:until], run["state"]) for run in runs))
    return _Outcome(
        compare(*runs, poisoned=poisoned), parameters, True, related or {}, moved, finite
    )


_FEW_BITS = 16


def _counts(run: PyTree, name: str) -> Iterator[str]:
    """Counts of steps that soon stand still or wrap round, and did not in this run."""
    for path, leaf in jax.tree_util.tree_leaves_with_path({"state": run["state"]}):
        if leaf.ndim != 1 or not is_numeric(leaf.dtype) or leaf.dtype == np.bool_:
            continue
        apart = np.diff(leaf.astype(np.float64))
        if not apart.size or apart[0] == 0 or (apart != apart[0]).any():
            continue
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating):
            info = jax.numpy.finfo(leaf.dtype)
            most, ends = abs(apart[0]) * 2 ** (info.nmant + 1), "stands still"
        else:
            info = jax.numpy.iinfo(leaf.dtype)
            most, ends = info.max, "wraps round"
        if info.bits <= _FEW_BITS:
            yield (
                f"{leaf_name(path)} of the {name} side counts in {leaf.dtype}, which {ends} at "
                f"{most:.0f}, after these steps"
            )


class _Checked:
    """A user's side: errors and changes of structure are reported with side, step and leaf."""

    def __init__(self, side: Side, name: str, params: Params):
        self.inner, self.params = side, params
        self.name = f"{name} side ({side.name})"
        self.expected = signature(params, "params")
        self.before: Any = None  # the structure of the state after the last step
        self.changed: Mapping[str, str] | None = None  # in Python, when it was traced last

        def body(state: PyTree, *given: Any) -> tuple[Any, Any]:
            before = plain_values(side.step) if side.compiled else {}
            state = side.step(state, *given)
            if side.compiled:
                after = plain_values(side.step)
                self.changed = changed(before, after, new=self.changed is None)
            return state, side.view(state)

        self.plain, self.body = body, jax.jit(body) if side.compiled else body

    def side(self) -> Side:
        """The side with the checks; its state is the number of steps, the state and its view."""
        return Side(self.name, self.init, self.step, lambda state: state[2], compiled=False)

    def init(self, params: Params) -> Any:
        def start() -> Any:
            if self.inner.compiled:
                return self.inner.init(jax.tree.map(jax.numpy.asarray, params))
            return self.inner.init(on_host(params))  # a copy: it may work in place

        state = _guarded(start, f"{self.name}, before step 1")
        # A function may fill its state at its first step, as torch's optimizers do.
        if self.inner.compiled:
            first = on_host(jax.jit(self.inner.view)(state)["state"])
            self.before = shapes(first, "state")
        return 0, state, None

    def gradients(self, stream: Stream, step: int, view: Any) -> tuple[Any]:
        where = f"{self.name}, step {step + 1}"
        current = self.params if view is None else view["params"]
        grads = _guarded(lambda: on_host(stream(step, current)), f"{where}, its gradients")
        if wrong := first_mismatch(self.expected, signature(grads, "params")):
            raise EquivalenceError(f"{where}: gradients are not like params: {wrong}")
        return (grads,)

    def step(self, state: PyTree, grads: Updates) -> Any:
        count, inner, _ = state
        where = f"{self.name}, step {count + 1}"
        last = inner
        inner, view = _guarded(functools.partial(self.body, inner, grads), where)
        if self.changed:  # what is made at the first call, and kept, is not changed by another
            again = functools.partial(self.plain, last, grads)
            _guarded(functools.partial(jax.eval_shape, again), where)
            self._refuse_python_state(where)
        view = on_host(view)
        if wrong := first_mismatch(self.expected, signature(view["params"], "params")):
            raise EquivalenceError(f"{where}: it changed its parameters' structure: {wrong}")
        after = signature(view["state"], "state")
        if wrong := self.before is not None and first_mismatch(self.before, after):
            raise EquivalenceError(f"{where}: it changed its state's structure: {wrong}")
        self.before = after
        return count + 1, inner, view

    def _refuse_python_state(self, where: str) -> None:
        if self.changed:
            path, values = next(iter(self.changed.items()))
            raise EquivalenceError(
                f"{where}: each call of its step changes a value in Python, `{path}` ({values}); "
                "compiled, it is called once, and that value stays. Keep it in the state, or hand "
                "in a pair of functions init(params) and step(grads, state, params), which run as "
                "they are"
            )


def _guarded(call: Callable[[], Any], where: str) -> Any:
    try:
        return call()
    except EquivalenceError:
        raise
    except Exception as error:
        raise EquivalenceError(f"{where}: raised {type(error).__name__}: {error}") from error


def _in_float64(
    sides: Sequence[Side],
    names: tuple[str, str],
    params: Params,
    stream: Stream,
    steps: int,
    closed_loop: bool,
    poisoned: Mapping[str, int],
) -> tuple[_Outcome | None, str]:
    """The same runs in float64, and a remark on them; None and the reason if a side cannot."""

    def wide_stream(step: int, current: Any) -> Any:
        return stream(step, current) if closed_loop else wide(stream(step, current))

    remarks, runs = [], []
    for side, name in zip(sides, names, strict=True):
        if not side.compiled:
            remarks.append(
                f"whether the {name} side, a plain function, does something else in "
                f"{_dtypes(params)} than in float64 is not known"
            )
            runs.append(side)
            continue
        try:
            run, is_same = in_float64(side, params, (on_host(stream(0, params)),))
        except Exception as error:
            return None, f"{name} side, in float64: {type(error).__name__}: {error}"
        if not is_same:
            remarks.append(f"the {name} side as it is in {_dtypes(params)}, which it asks for")
        runs.append(run)
    with float64():
        try:
            found = _compared(runs, names, wide(params), wide_stream, steps, poisoned)
            return found, "; ".join(remarks)
        except EquivalenceError as error:
            return None, str(error)


def _dtypes(params: Params) -> str:
    return ", ".join(sorted({str(leaf.dtype) for leaf in jax.tree.leaves(params)}))


def _finite(runs: PyTree) -> int:
    """The number of steps before the first at which some number is not finite."""
    floats = [
        leaf
        for leaf in jax.tree.leaves(runs)
        if jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
    ]
    return min(
        int(np.argmin(np.append(np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1), False)))
        for leaf in floats
    )

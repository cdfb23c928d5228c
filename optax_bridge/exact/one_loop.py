# pyright: strict, reportMissingTypeStubs=false, reportIncompatibleMethodOverride=false
"""On CPUs: a step in one loop over each parameter, in place of one for each of its arrays.

XLA compiles Adam's step into three loops, for both moments and for the parameter, which read and
write ten arrays where seven would do. It joins loops that read the same arrays if a flag tells it
to, and if the parameter's loop reads what the moments' read: if it computes them once more. Joined,
each moment is computed once.

The bits stay only where the joined loop loads the arrays in the order of the single ones: the
compiler makes fused multiply-adds by that order. XLA begins with the loop of the program's last
result, so that Adam's first moment must come last: the state's leaves are in reverse. Which
optimizers keep every bit, `LeafRule.joined` says; `one_loop` takes those alone.
"""

import dataclasses
import functools
import os
import warnings
from collections.abc import Iterable
from typing import Any

import jax

from optax_bridge._internals import backends_are_initialized
from optax_bridge.exact.leaf_rule import LeafRule
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.trees import Extra, OptState, Params, PathKey, PyTree, Updates

StateType = Any  # a NamedTuple type, whose fields are known when it is there

FLAG = "--xla_backend_extra_options=xla_cpu_use_multi_output_fusion=true"
_NAME = "xla_cpu_use_multi_output_fusion=true"
# JAX 0.6 joins other loops, and bits change, from 0.11.1 on as well: it joins the moments' loops
# without the parameter's, so that nothing is gained. Each JAX from the first to the last was tried.
FIRST, LAST = (0, 10), (0, 11, 0)


@functools.cache
def last_first(state_type: StateType) -> StateType:
    """The same state but for the order of its leaves, the last field's first."""
    names: tuple[str, ...] = state_type._fields

    def reduce(state: PyTree) -> PyTree:  # pickle finds the state's own class by its name
        return _make_last_first, (state_type, *state)

    members = {"__slots__": (), "__doc__": state_type.__doc__, "__reduce__": reduce}
    reordered: StateType = type(state_type.__name__, (state_type,), members)
    keys = [jax.tree_util.GetAttrKey(name) for name in names[::-1]]

    def with_keys(state: PyTree) -> tuple[list[tuple[PathKey, PyTree]], None]:
        return list(zip(keys, tuple(state)[::-1], strict=True)), None

    def flatten_state(state: PyTree) -> tuple[tuple[PyTree, ...], None]:
        return tuple(state)[::-1], None

    def unflatten_state(aux: None, leaves: Iterable[PyTree]) -> OptState:
        del aux
        return reordered(*tuple(leaves)[::-1])

    register: Any = vars(jax.tree_util)["register_pytree_with_keys"]  # whose types are unknown
    register(reordered, with_keys, unflatten_state, flatten_state)
    return reordered


def _make_last_first(state_type: StateType, *fields: PyTree) -> OptState:
    return last_first(state_type)(*fields)


def one_loop(tx: ExactTransformation) -> ExactTransformation:
    """On CPUs: the same step, to the bit, in less time: for large parameters.

    In float32, where a step waits for memory, it reads and writes up to 30 % fewer bytes. It
    compiles longer, 400 parameters up to four times as long.

    It sets a flag of XLA for the whole process, so call it before anything is computed. The flag
    holds for all that the process compiles: the optimizer's step keeps its bits, a model's own
    loops may round differently.

        tx = optax_bridge.one_loop(optax_bridge.adam(1e-3))

    The state has the optimizer's own fields, `state.opt_state.mu` say, and checkpoints with and
    without `one_loop` are alike: a training may take it up, or leave it, where it resumes. For
    `adam` and `lamb` JAX has the leaves in another order, the last field's first, so a state in
    memory becomes the other kind by the type that `init` gives:

        state_type = type(one.init(state.params))
        state = state.replace(tx=one, opt_state=state_type(*state.opt_state))

    Compare its bits with another optimizer's in two processes, one without the flag. In one, as
    by `optax-bridge compare`, the flag is for both sides and changes the other's bits, so
    that the two are called "rounding only".

    On other devices it changes nothing but the time to compile. Within `multi_optimizer` it goes
    around the parts.

    Args:
      tx: `adam`, `adagrad`, `lamb`, `momentum`, `rmsprop` or `sgd` (which gains nothing).

    Returns:
      The transformation; `tx` itself where this JAX is not known to keep the bits.

    Warns:
      RuntimeWarning: this JAX is not 0.10 to 0.11.0: others join loops in a way that changes bits,
        or were not tried. The step is then the plain one.

    Raises:
      RuntimeError: JAX has computed already, without the flag in XLA_FLAGS.
      TypeError: this is no exact transformation.
      ValueError: the loops of this optimizer, joined, would round differently, or nothing would be
        gained.
    """
    rule, state_type = _checked_rule(tx)
    if not keeps_bits():
        warnings.warn(
            f"one_loop: JAX {jax.__version__} may join loops so that last bits change, expected "
            "0.10 to 0.11.0, which keep them: this is the plain step, with the same bits and state",
            RuntimeWarning,
            stacklevel=2,
        )
        return tx
    _set_flag()
    joined = _Joined(tx, state_type, rule.joined == "in reverse")
    return ExactTransformation(joined.init, joined.update, joined.step, tx.hyper_params)


@dataclasses.dataclass(frozen=True, eq=False)
class _Joined:
    """A transformation whose step XLA compiles into one loop for each parameter."""

    tx: ExactTransformation
    state_type: StateType
    in_reverse: bool

    def init(self, params: Params) -> OptState:
        return self._reorder(self.tx.init(params))

    def update(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        updates, new = self.tx.update(updates, self._in_order(state), params, **extra)
        return updates, self._reorder(new)

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Extra
    ) -> tuple[Params, OptState]:
        state = self._in_order(state)
        # What XLA does not know to be the same it computes twice, until the loops are joined.
        barrier: Any = vars(jax.lax)["optimization_barrier"]  # whose types are unknown
        again = barrier((grads, state, params))
        _, new = self.tx.step(grads, state, params, **extra)
        new_params, _ = self.tx.step(*again, **extra)
        return new_params, self._reorder(new)

    def _reorder(self, state: PyTree) -> OptState:
        return last_first(self.state_type)(*state) if self.in_reverse else state

    def _in_order(self, state: PyTree) -> OptState:
        is_reversed = self.in_reverse and isinstance(state, self.state_type)
        return self.state_type(*state) if is_reversed else state


def _checked_rule(tx: ExactTransformation) -> tuple[LeafRule, StateType]:
    """The rule of an optimizer whose loops can be joined, and the type of its state."""
    if not isinstance(tx, ExactTransformation):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            "one_loop: expected an exact transformation, optax_bridge.adam(...) say, found "
            f"{type(tx).__name__}"
        )
    rule: Any = getattr(tx.init, "__self__", None)
    state_type: StateType = getattr(rule, "state_type", type(None))
    if not isinstance(rule, LeafRule) or rule.joined == "other bits":
        raise ValueError(
            "one_loop: nothing is known to be gained with the same bits for a transformation whose "
            f"state is {state_type.__name__}; help(optax_bridge.one_loop) names those that it "
            "takes. Within multi_optimizer, give each part its own: "
            "multi_optimizer((selector, one_loop(adam(1e-3))))."
        )
    return rule, state_type


def keeps_bits() -> bool:
    """Whether this JAX was seen to join the loops with the same bits."""
    return FIRST <= jax.__version_info__ <= LAST


def _set_flag() -> None:
    """Puts the flag into XLA_FLAGS, which XLA reads once, before it computes anything."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _NAME in flags:
        return
    if backends_are_initialized():
        raise RuntimeError(
            "one_loop: JAX has computed already, and XLA reads its flags once. Call one_loop "
            f"before the first array is made, or start the program with XLA_FLAGS={FLAG}"
        )
    if "--xla_backend_extra_options=" in flags:
        raise RuntimeError(
            f"one_loop: XLA_FLAGS has other options of the backend: add {_NAME} to them, after a "
            "comma"
        )
    os.environ["XLA_FLAGS"] = f"{flags} {FLAG}".strip()

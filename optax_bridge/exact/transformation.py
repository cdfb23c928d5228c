"""Gradient transformations that can also return the new parameters.

Optax's protocol returns an *update* that the caller adds to the parameters. Where a legacy
optimizer touches a parameter twice (decoupled weight decay: ``(p - a) - b``), no update reproduces
its rounding. An `ExactTransformation` is an ordinary Optax transformation with one more function,
`step`, that returns the new parameters; `optax_bridge.TrainState` takes that path and so follows
the legacy optimizer bit for bit.

Optax takes transformations apart and keeps their functions: `optax.chain`, `optax.masked` and
`optax.partition` hold on to `init` and `update` alone. All that is known of an exact transformation
is therefore kept by its `update`, which is an `ExactUpdate`.
"""

import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from optax_bridge._internals import trace_state, trace_state_if_known
from optax_bridge.metadata.trees import Extra, HyperParams, Leaf, OptState, Params, Updates

_PROTOCOL = 3  # updates, state, params
Step = Callable[..., tuple[Params, OptState]]
Transformations = tuple[optax.GradientTransformation, ...]
Parts = Sequence[tuple[optax.GradientTransformation, OptState, Params]]


@dataclasses.dataclass(frozen=True, eq=False)
class ExactUpdate:
    """The `update` of an `ExactTransformation`, and the record of it."""

    update: Callable[..., tuple[Updates, OptState]]
    step: Step
    hyper_params: HyperParams
    inner: Transformations = ()
    parts: Callable[[OptState, Params], Parts] | None = None

    def __call__(
        self, updates: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        """As of any transformation."""
        noted = _NOTED.get()
        # Tracers of an inner trace, of `jax.lax.cond` say, must not leave it.
        if noted is None or params is None or noted.trace != trace_state():
            return self.update(updates, state, params, **extra)
        with _noting(None):
            new_updates, _ = self.update(updates, state, params, **extra)
            new_params, new_state = self.step(updates, state, params, **extra)
        noted.calls.append(ExactCall(self, state, params, new_updates, new_params))
        return new_updates, new_state


class ExactCall(NamedTuple):
    """One use of an `ExactUpdate` within another transformation's update."""

    record: ExactUpdate
    state: OptState
    params: Params
    updates: Updates
    new_params: Params

    def leaves(self) -> Iterator[tuple[Leaf, Leaf, Leaf]]:
        """Update, parameter and new parameter of each leaf."""
        leaves, treedef = jax.tree.flatten(self.updates)
        others = (treedef.flatten_up_to(tree) for tree in (self.params, self.new_params))
        return zip(leaves, *others, strict=True)


class _Noted(NamedTuple):
    calls: list[ExactCall]
    trace: object


_NOTED: contextvars.ContextVar[_Noted | None] = contextvars.ContextVar(
    "exact updates called by another transformation", default=None
)


@contextlib.contextmanager
def _noting(calls: list[ExactCall] | None) -> Iterator[None]:
    token = _NOTED.set(None if calls is None else _Noted(calls, trace_state_if_known()))
    try:
        yield
    finally:
        _NOTED.reset(token)


class ExactTransformation(optax.GradientTransformationExtraArgs):
    """An Optax transformation that also computes the new parameters.

    It unpacks, chains, masks and compares like any `optax.GradientTransformationExtraArgs`.

        >>> tx = optax_bridge.adam(1e-3, weight_decay=0.1)
        >>> tx.hyper_params["b1"]
        0.9
        >>> init, update = tx  # as Optax takes it apart
        >>> ExactTransformation(init, update).step == tx.step
        True

    Attributes:
      step: `step(grads, state, params, **extra) -> (new_params, new_state)`.
      hyper_params: name -> value as given to the constructor; each can be overridden per call, by a
        keyword argument of `update` and `step`.
      inner: the transformations that this one is made of; it takes their arguments per call.
      parts: `parts(state, params)` gives each of these with its own state and parameters.
    """

    __slots__ = ()

    def __new__(
        cls,
        init: Callable[..., OptState],
        update: Callable[..., tuple[Updates, OptState]],
        step: Step | None = None,
        hyper_params: HyperParams | None = None,
        inner: Sequence[optax.GradientTransformation] = (),
        parts: Callable[[OptState, Params], Parts] | None = None,
    ) -> Self:
        """Makes the transformation; the arguments are its attributes.

        Without `step`, `update` is that of another `ExactTransformation`, whose record it has.

        Raises:
          TypeError: there is no `step`, and `update` has none either.
        """
        if step is not None:
            update = ExactUpdate(update, step, dict(hyper_params or {}), tuple(inner), parts)
        elif callable(update) and not isinstance(update, ExactUpdate):
            # JAX builds trees of placeholders, which are not callable.
            raise TypeError(
                f"ExactTransformation: {update!r} has no exact step. Give step=, a function "
                "step(grads, state, params) -> (new_params, new_state), or use "
                "optax.GradientTransformationExtraArgs(init, update)."
            )
        return super().__new__(cls, init, update)

    @classmethod
    def _make(cls, iterable: Iterable[Any]) -> Self:
        return cls(*iterable)

    def __deepcopy__(self, memo: object) -> Self:
        return self  # as functions are; a copy would be another static value to jax.jit

    @property
    def _record(self) -> ExactUpdate:
        record: Any = self.update
        return record

    @property
    def step(self) -> Step:
        """Gives new parameters in place of updates."""
        return self._record.step

    @property
    def hyper_params(self) -> HyperParams:
        """The hyper-parameters as given to the constructor."""
        return self._record.hyper_params

    @property
    def inner(self) -> Transformations:
        """The transformations that this one is made of."""
        return self._record.inner

    @property
    def parts(self) -> Callable[[OptState, Params], Parts] | None:
        """Gives each of `inner` with its own state and parameters."""
        return self._record.parts


def take_step(
    tx: optax.GradientTransformation,
    grads: Updates,
    state: OptState,
    params: Params,
    **extra: Extra,
) -> tuple[Params, OptState]:
    """Takes one step with any transformation, on its exact path if it has one."""
    if isinstance(tx, ExactTransformation):
        return tx.step(grads, state, params, **extra)
    updates, new_state, calls = noted_update(tx, grads, state, params, **extra)
    exact = {id(update): pair for call in calls for update, *pair in call.leaves()}

    def apply(param: Leaf, update: jax.Array) -> Leaf:
        old, new = exact.get(id(update), (None, None))
        if old is param:
            return jnp.asarray(new, jnp.result_type(param))  # Optax keeps a parameter's dtype
        return optax.apply_updates(param, update)

    return jax.tree.map(apply, params, updates), new_state


def noted_update(
    tx: optax.GradientTransformation,
    grads: Updates,
    state: OptState,
    params: Params,
    **extra: Extra,
) -> tuple[Updates, OptState, list[ExactCall]]:
    """Calls `tx.update`; returns its results and the exact updates that it called."""
    calls: list[ExactCall] = []
    with _noting(calls):
        updates, new_state = update_with_arguments(tx)(grads, state, params, **extra)
    return updates, new_state, calls


def update_with_arguments(
    tx: optax.GradientTransformation,
) -> Callable[..., tuple[Updates, OptState]]:
    """`tx.update` with those extra arguments that it names: `optax.MultiSteps` takes them, too."""
    names = argument_names(tx.update)
    if names is None:
        return tx.update

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        taken = {name: value for name, value in extra.items() if name in names}
        return tx.update(updates, state, params, **taken)

    return update


def argument_names(update: Callable[..., object]) -> frozenset[str] | None:
    """The extra arguments that an update names in its signature; None: it takes any."""
    parameters = inspect.signature(update).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(
        p.name
        for index, p in enumerate(parameters)
        if p.kind is p.KEYWORD_ONLY or (p.kind is p.POSITIONAL_OR_KEYWORD and index >= _PROTOCOL)
    )

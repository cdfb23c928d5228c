"""From a legacy optimizer to its Optax equal and back: transformation, state and step."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax

import legacy_optim
from optax_bridge._text import brief
from optax_bridge.checks import check_definition, check_one_copy, check_optimizer
from optax_bridge.correspondence import Choice, choose_recipe, entry_of
from optax_bridge.correspondence.claim import HALF_PRECISION, Verdict
from optax_bridge.correspondence.entry import UnsupportedSetting
from optax_bridge.correspondence.recipe import Call, build, replace_nodes
from optax_bridge.exact.boxed import with_axis_metadata
from optax_bridge.exact.leaf_rule import difference
from optax_bridge.exact.transformation import ExactTransformation, update_with_arguments
from optax_bridge.metadata.axis_metadata import shapes_of, unboxed
from optax_bridge.metadata.trees import Extra, Leaf, OptState, Params, PyTree, Updates
from optax_bridge.states import Slot, field_slots, fill, rows_of, state_with


def from_legacy(
    definition: legacy_optim.OptimizerDef, exact: bool = True
) -> optax.GradientTransformationExtraArgs:
    """Returns the Optax equivalent of a legacy optimizer definition.

        >>> tx = from_legacy(legacy_optim.Adam(1e-3, weight_decay=0.1))
        >>> tx.hyper_params["weight_decay"]
        0.1
        >>> from_legacy(legacy_optim.Adagrad(0.1), exact=False)
        Traceback (most recent call last):
        ...
        optax_bridge.correspondence.entry.UnsupportedSetting: Adagrad: the nearest recipe of ...

    Args:
      definition: any definition, `MultiOptimizer`, `WeightNorm` and classes of the user's included.
      exact: this project's transformation in legacy arithmetic. Under
        `TrainState.apply_gradients` it repeats the legacy trajectory bit for bit. False: public
        Optax, where that is identical up to rounding.

    Returns:
      The transformation. With `exact=False` its `init` and `update` raise UnsupportedSetting for
      parameters in bfloat16 or float16 if public Optax is not equivalent in that dtype.

    Raises:
      TypeError: `exact` is not a boolean, or `definition` not a definition.
      UnsupportedSetting: `exact=False`, and public Optax has no equivalent of these settings.
    """
    check_definition(definition, "definition")
    if not isinstance(exact, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"exact: expected True or False, found {brief(exact)}")
    choice = choose_recipe(definition, "exact" if exact else "optax")
    if choice.claim.verdict is Verdict.DIFFERENT:
        raise UnsupportedSetting(f"{choice.reason}. exact=True is exact.")
    return build_choice(choice)


def build_choice(choice: Choice) -> optax.GradientTransformationExtraArgs:
    """Builds a recipe; public Optax in it refuses parameters for which it does not hold."""
    return optax.with_extra_args_support(build(_with_checks(choice)))


def _with_checks(choice: Choice) -> Call:
    """The recipe of a choice; public Optax in it refuses parameters for which it does not hold."""
    if choice.parts:
        checked = {id(part.call): _with_checks(part) for part in choice.parts}
        return replace_nodes(choice.call, checked)
    if choice.kind == "exact" or choice.dtypes.issuperset(HALF_PRECISION):
        return choice.call
    return Call(f"{__name__}.only_in", (choice.call, choice.dtypes, choice.reason))


def only_in(
    tx: optax.GradientTransformation, dtypes: frozenset[str], reason: str
) -> optax.GradientTransformationExtraArgs:
    """Wraps a transformation so that it refuses half-precision dtypes other than the given ones."""
    refused = set(HALF_PRECISION) - dtypes

    def check(tree: PyTree) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            dtype = str(getattr(leaf, "dtype", ""))
            if dtype in refused:
                raise UnsupportedSetting(
                    f"params{jax.tree_util.keystr(path)} is {dtype}, for which exact=False gives "
                    f"no equivalent: {reason}. exact=True is exact in every dtype."
                )

    def init(params: Params) -> OptState:
        check(params)
        return tx.init(params)

    def update(
        updates: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        check(updates if params is None else params)
        return update_with_arguments(tx)(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(init, update)


def wrap_definition(definition: legacy_optim.OptimizerDef) -> ExactTransformation:
    """Wraps a definition of the user's own class, which has no entry, as a transformation.

        >>> class Halving(legacy_optim.GradientDescent):
        ...     def apply_param_gradient(self, step, hyper_params, param, state, grad):
        ...         return param / 2, state
        >>> tx = wrap_definition(Halving(0.1))
        >>> state = optax_bridge.TrainState.create(apply_fn=None, params=jnp.ones(()), tx=tx)
        >>> state.apply_gradients(grads=jnp.ones(())).params.item()
        0.5

    Args:
      definition: an instance of a subclass of `OptimizerDef`.

    Returns:
      The transformation; its state comes from the definition's `init_state`, an `OptimizerState`
      as a rule, its per-call arguments are the definition's hyper-parameters. Of a subclass of
      `MultiOptimizer` these go to every group, and `hyper_params=[...]` is the list of all groups',
      which `tx.hyper_params["hyper_params"]` holds as the definition does.
    """
    check_definition(definition, "definition")
    wrapped = _Wrapped(definition)
    values = _hyper_param_values(definition.hyper_params)
    tx = ExactTransformation(definition.init_state, wrapped.update, wrapped.step, values)
    return with_axis_metadata(tx)


def _hyper_param_values(hyper_params: object) -> dict[str, Extra]:
    """Returns the hyper-parameters that a step may override; None as the value for groups."""
    if isinstance(hyper_params, list | tuple):
        names = dict.fromkeys(name for group in hyper_params for name in _hyper_param_values(group))
        return {**names, "hyper_params": hyper_params}
    fields = getattr(hyper_params, "__dataclass_fields__", {})
    return {name: getattr(hyper_params, name) for name in fields}


@dataclass(frozen=True, eq=False)
class _Wrapped:
    definition: legacy_optim.OptimizerDef

    def step(
        self, grads: Updates, state: OptState, params: Params, **extra: Extra
    ) -> tuple[Params, OptState]:
        hyper_params = self.definition.update_hyper_params(**extra)
        return self.definition.apply_gradient(hyper_params, params, state, grads)

    def update(
        self, grads: Updates, state: OptState, params: Params | None = None, **extra: Extra
    ) -> tuple[Updates, OptState]:
        if params is None:
            raise ValueError(f"{type(self.definition).__name__}: update(grads, state, params)")
        names = _hyper_param_values(self.definition.hyper_params)
        overrides = {name: value for name, value in extra.items() if name in names}
        new_params, new_state = self.step(grads, state, params, **overrides)
        return difference(new_params, params, grads), new_state


def to_optax(
    optimizer: legacy_optim.Optimizer, exact: bool = True
) -> tuple[optax.GradientTransformationExtraArgs, OptState]:
    """Returns the transformation for a legacy optimizer, and its current state."""
    check_optimizer(optimizer)
    definition = optimizer.optimizer_def
    tx = from_legacy(definition, exact)
    template = jax.eval_shape(tx.init, optimizer.target)  # only its structure: nothing is allocated
    legacy_state = optimizer.state
    if entry_of(definition) is None:
        return tx, legacy_state
    rows = rows_of(legacy_state, optimizer.target)
    remedy = (
        "Was the legacy state made by a definition with other settings, or for other parameters?"
        if exact
        else "Optax may use another dtype, which loses bits: exact=True keeps them."
    )
    try:
        state = fill(template, rows, legacy_state.step)
    except ValueError as error:
        raise ValueError(f"optimizer.state: {error}. {remedy}") from None
    return tx, state


def to_legacy(
    definition: legacy_optim.OptimizerDef, params: Params, opt_state: OptState, step: Leaf
) -> legacy_optim.Optimizer:
    """Returns the legacy optimizer for a state of the transformation of its definition."""
    check_definition(definition, "definition")
    check_one_copy(step)
    step = jnp.asarray(step, jnp.int32)
    template, fields = legacy_fields(definition, params, opt_state)
    if template is opt_state:
        return legacy_optim.Optimizer(definition, opt_state, params)
    rows = {slot.row: slot.apply_sign(slot.leaf) for slot in fields}
    return legacy_optim.Optimizer(definition, state_with(template, rows, step, params), params)


def legacy_fields(
    definition: legacy_optim.OptimizerDef, params: Params, opt_state: OptState
) -> tuple[PyTree, list[Slot]]:
    """The shapes of a legacy state and the leaves that fill it; a user's own state unchanged."""
    if entry_of(definition) is None:
        kind = _state_class(definition, params)
        if not isinstance(opt_state, kind):
            raise _not_its_state(
                definition, f"expected {kind.__name__}, found {type(opt_state).__name__}"
            )
        return opt_state, []
    shapes = shapes_of(unboxed(params))
    template = jax.eval_shape(definition.init_state, shapes)
    try:
        return template, field_slots(opt_state, rows_of(template, shapes))
    except ValueError as error:
        raise _not_its_state(definition, str(error)) from None


def _state_class(definition: legacy_optim.OptimizerDef, params: Params) -> type:
    """Checks the state of a program's own definition, whose `init_state` may return any class."""
    if type(definition).init_state is legacy_optim.OptimizerDef.init_state:
        return legacy_optim.OptimizerState
    return type(jax.eval_shape(definition.init_state, params))


def _not_its_state(definition: legacy_optim.OptimizerDef, problem: str) -> ValueError:
    return ValueError(
        f"opt_state is not that of {type(definition).__name__} for these parameters: {problem}. "
        "Pass the definition that the state's transformation came from, and the parameters that "
        "the state was made for."
    )

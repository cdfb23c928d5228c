"""Adafactor (Shazeer and Stern 2018), as `flax.optim.Adafactor` computes it, and by axis."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from optax_bridge.correspondence.claim import differs, rounding
from optax_bridge.correspondence.entry import (
    Case,
    Entry,
    LegacyClass,
    OptaxRecipe,
    Row,
    StateField,
    Unsupported,
    squares,
)
from optax_bridge.correspondence.recipe import Name, Node, call
from optax_bridge.correspondence.recipe import Setting as s
from optax_bridge.correspondence.values import DECAY, NOT_NEGATIVE, Range
from optax_bridge.exact.calls import explained
from optax_bridge.exact.leaf_rule import LeafRule, ScalarOrSchedule
from optax_bridge.exact.transformation import ExactTransformation
from optax_bridge.metadata.axis_metadata import Reduced
from optax_bridge.metadata.trees import HyperParams, Leaf, Params, PyTree
from optax_bridge.optimizers.axis_roles import AxisRules, Factors, PathRules, Planner


class AdafactorState(NamedTuple):
    """State of `adafactor`; float32 for all dtypes of parameters, and of shape (1,) where unused.

    Attributes:
      count: steps taken, int32 scalar.
      v_row: mean of the squared gradient over the largest axis, for each factored parameter.
      v_col: the same over the second largest axis.
      v: the whole second moment, for each parameter that is not factored.
      m: the accumulated step, in `dtype_momentum`, if there is momentum.
    """

    count: jax.Array
    v_row: Params
    v_col: Params
    v: Params
    m: Params


@explained
def adafactor(
    learning_rate: ScalarOrSchedule | None = None,
    factored: bool = True,
    multiply_by_parameter_scale: bool = True,
    momentum: ScalarOrSchedule | None = None,
    decay_rate: ScalarOrSchedule = 0.8,
    step_offset: int = 0,
    clipping_threshold: ScalarOrSchedule | None = 1.0,
    weight_decay_rate: ScalarOrSchedule | None = None,
    min_dim_size_to_factor: int = 128,
    epsilon1: ScalarOrSchedule = 1e-30,
    epsilon2: ScalarOrSchedule = 1e-3,
    dtype_momentum: Any = jnp.float32,
    *,
    axis_rules: AxisRules | None = None,
    path_rules: PathRules | None = None,
    as_in_t5x: bool = False,
) -> ExactTransformation:
    """Adafactor with every setting of the legacy one, and optional rules by axis.

    By default the two longest axes of a parameter are factored, of any meaning: for a kernel
    scanned over 300 layers, that includes the layers. Rules give each axis a role; see
    `optax_bridge.Role` for examples. A box that carries roles (`optax_bridge.with_roles`) needs no
    rule, and a parameter with no rule, no names and no roles is factored by size.

    Args:
      learning_rate: a number, a schedule, or None to pass it with every call.
      factored: keeps row and column means for parameters with two axes that are large enough.
      multiply_by_parameter_scale: makes the learning rate relative to the parameter's root mean
        square.
      momentum: decay of the accumulated step (`beta1` in the paper), None for none.
      decay_rate: exponent of the second moment's decay, `1 - t ** -decay_rate`.
      step_offset: step at which the decay schedule starts, for fine-tuning.
      clipping_threshold: largest root mean square of the update before it is scaled, None for any.
      weight_decay_rate: the parameter is multiplied by `1 - weight_decay_rate`, at any
        learning rate.
      min_dim_size_to_factor: both axes must be at least this long to be factored.
      epsilon1: added to the squared gradient.
      epsilon2: smallest parameter scale. `optax.adafactor` has it fixed at 1e-3.
      dtype_momentum: dtype of the accumulated step.
      axis_rules: role of each axis by its name, for parameters in boxes with names.
      path_rules: a role for each axis, by a regular expression that is searched for in the
        '/'-joined path.
      as_in_t5x: ignores a rule without a batch axis for parameters of rank 2 and below, which are
        then factored by size, as T5X does. Needed to continue from a checkpoint of T5X.

    Returns:
      The transformation; without rules bit for bit `flax.optim.Adafactor` on the exact path.

    Raises:
      ValueError: a rule has an unknown role, or a name has two. `init` raises it, naming the
        parameter, its shape and its axes, for a rule that fits no axis, rules that collide, and a
        row without a column.
    """
    dtype = _momentum_dtype(dtype_momentum)
    arithmetic = _Arithmetic(multiply_by_parameter_scale, momentum is not None, dtype)
    return arithmetic.transformation(
        Planner.of(factored, min_dim_size_to_factor, axis_rules, path_rules, as_in_t5x),
        dict(
            learning_rate=learning_rate,
            momentum=momentum,
            decay_rate=decay_rate,
            step_offset=step_offset,
            clipping_threshold=clipping_threshold,
            weight_decay_rate=weight_decay_rate,
            epsilon1=epsilon1,
            epsilon2=epsilon2,
        ),
    )


def _momentum_dtype(dtype: PyTree) -> DTypeLike:
    """The dtype, by its name, its class or an array that has it."""
    result = None if isinstance(dtype, bool | int | float) else jnp.result_type(dtype)
    if result is None or not jnp.issubdtype(result, jnp.floating):
        raise TypeError(f"dtype_momentum: expected a floating-point dtype, found {dtype!r}")
    return result


@dataclass(frozen=True)
class _Arithmetic:
    """The settings that are not numbers, and values computed from them."""

    multiply_by_parameter_scale: bool
    has_momentum: bool
    dtype_momentum: DTypeLike

    def transformation(self, plan: Planner, hyper_params: HyperParams) -> ExactTransformation:
        return LeafRule(
            AdafactorState,
            self.init,
            self.step,
            hyper_params,
            reads_params=self.multiply_by_parameter_scale,
            decay="weight_decay_rate",
            apply=_apply,
            plan=plan,
        ).transformation()

    def init(self, factors: Factors, param: Leaf) -> tuple[PyTree, ...]:
        shape = jnp.shape(param)
        v_row, v_col, v, m = (jnp.zeros((1,)) for _ in range(4))  # four: they may be donated
        if factors.columns:
            v_row = _reduced_zeros(param, factors.without(factors.columns, len(shape)))
            v_col = _reduced_zeros(param, factors.without(factors.rows, len(shape)))
        else:
            v = _zeros(param, range(len(shape)), jnp.float32)
        if self.has_momentum:
            m = _zeros(param, range(len(shape)), self.dtype_momentum)
        return v_row, v_col, v, m

    def step(
        self,
        factors: Factors,
        hp: SimpleNamespace,
        count: jax.Array,
        grad: jax.Array,
        param: jax.Array,
        v_row: jax.Array,
        v_col: jax.Array,
        v: jax.Array,
        m: jax.Array,
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        grad, param = jnp.asarray(grad, jnp.float32), jnp.asarray(param)
        decay = 1.0 - (jnp.array(count - hp.step_offset, jnp.float32) + 1.0) ** (-hp.decay_rate)
        scale = hp.learning_rate
        if self.multiply_by_parameter_scale:
            scale = scale * jnp.maximum(_rms(param, factors), hp.epsilon2)
        mixing = 1.0 - decay
        grad_sq = grad * grad + hp.epsilon1
        if factors.columns:
            rows, columns = factors.rows, factors.columns
            v_row = decay * v_row + mixing * jnp.mean(grad_sq, axis=columns)
            v_col = decay * v_col + mixing * jnp.mean(grad_sq, axis=rows)
            axes_of_v_row = factors.without(columns, param.ndim)
            rows_in_v_row = tuple(axes_of_v_row.index(axis) for axis in rows)
            row_mean = jnp.mean(v_row, axis=rows_in_v_row, keepdims=True)
            row_factor = jnp.expand_dims((v_row / row_mean) ** -0.5, axis=columns)
            col_factor = jnp.expand_dims(v_col**-0.5, axis=rows)
            update = grad * row_factor * col_factor
        else:
            v = decay * v + mixing * grad_sq
            update = grad * v**-0.5
        if hp.clipping_threshold is not None:
            update = update / jnp.maximum(1.0, _rms(update, factors) / hp.clipping_threshold)
        decrement = scale * update
        if hp.momentum is not None:
            decrement = hp.momentum * m + (1.0 - hp.momentum) * decrement
            m = decrement.astype(self.dtype_momentum)
        return decrement, (v_row, v_col, v, m)


def _apply(hp: SimpleNamespace, param: jax.Array, decrement: jax.Array) -> jax.Array:
    decayed = param if hp.weight_decay_rate is None else (1.0 - hp.weight_decay_rate) * param
    return (decayed - decrement).astype(jnp.result_type(param))


def _reduced_zeros(param: Leaf, axes: tuple[int, ...]) -> Reduced:
    return Reduced(_zeros(param, axes, jnp.float32), axes)


def _zeros(param: Leaf, axes: Sequence[int], dtype: DTypeLike) -> jax.Array:
    """Zeros over some axes of a parameter, sharded as these are on a mesh with explicit axes."""
    shape = [jnp.shape(param)[axis] for axis in axes]
    typed = jax.typeof(param) if isinstance(param, jax.Array) else param
    sharding = getattr(typed, "sharding", None)
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return jnp.zeros(shape, dtype)
    names = [*sharding.spec, *[None] * len(jnp.shape(param))]
    spec = PartitionSpec(*(names[axis] for axis in axes))
    concrete = getattr(param, "sharding", None)  # its mesh has devices, unlike a type's
    mesh = concrete.mesh if isinstance(concrete, NamedSharding) else sharding.mesh
    return jnp.zeros(shape, dtype, device=NamedSharding(mesh, spec))


def _rms(array: jax.Array, factors: Factors) -> jax.Array:
    """Root mean square over all axes but those of role batch, which stay with length 1."""
    if not factors.batch:
        return jnp.sqrt(jnp.mean(array * array))
    over = factors.without(factors.batch, array.ndim)
    return jnp.sqrt(jnp.mean(array * array, axis=over, keepdims=True))


def _infer_settings(rows: Sequence[Row]) -> dict[str, Node]:
    """Settings that factor the parameters that were, with momentum if there is some."""
    settings: dict[str, Node] = {"factored": False}
    for _, param, state in rows:
        arrays = (param, *(state or {}).values())
        if state is None or not all(hasattr(array, "shape") for array in arrays):
            continue
        if param.shape == (1,):  # as unused statistics have
            continue
        if state["m"].shape == param.shape:
            settings |= {"beta1": 0.9, "dtype_momentum": state["m"].dtype}
        if state["v"].shape == (1,) and len(param.shape) > 1:
            shortest = sorted(param.shape)[-2]
            length = min(settings.get("min_dim_size_to_factor", shortest), shortest)
            settings |= {"factored": True, "min_dim_size_to_factor": length}
    return settings


# Adafactor is Optax's adafactor, unless its second epsilon was moved.
ENTRY = Entry(
    legacy=LegacyClass("legacy_optim.Adafactor"),
    port="optax_bridge.adafactor",
    renamed={"beta1": "momentum"},
    within={
        "beta1": DECAY,
        "decay_rate": NOT_NEGATIVE,
        "clipping_threshold": Range(0, or_none=True),
        "min_dim_size_to_factor": NOT_NEGATIVE,
        "epsilon1": NOT_NEGATIVE,
        "epsilon2": NOT_NEGATIVE,
    },
    getters={"dtype_momentum": operator.attrgetter("dtype_momentum")},
    state=(
        squares("v_row", exact="AdafactorState.v_row", optax=("FactoredState.v_row",)),
        squares("v_col", exact="AdafactorState.v_col", optax=("FactoredState.v_col",)),
        squares("v", exact="AdafactorState.v", optax=("FactoredState.v",)),
        StateField("m", exact="AdafactorState.m", optax=("EmaState.ema",)),
    ),
    optax=(
        OptaxRecipe(
            call(
                "optax.adafactor",
                learning_rate=s("learning_rate"),
                min_dim_size_to_factor=s("min_dim_size_to_factor"),
                decay_rate=s("decay_rate"),
                decay_offset=s("step_offset"),
                multiply_by_parameter_scale=s("multiply_by_parameter_scale"),
                clipping_threshold=s("clipping_threshold"),
                momentum=s("beta1"),
                dtype_momentum=s("dtype_momentum"),
                weight_decay_rate=s("weight_decay_rate"),
                eps=s("epsilon1"),
                factored=s("factored"),
            ),
            rounding(
                16,
                "order of operations only",
                bfloat16=differs("the legacy statistics are float32, Optax's bfloat16"),
                float16=differs("the legacy statistics are float32, Optax's float16"),
                float64=differs("the legacy statistics are float32, Optax's float64"),
            ),
        ),
    ),
    unsupported=(
        Unsupported(
            "epsilon2",
            1e-3,
            "optax.adafactor has the smallest parameter scale fixed at 1e-3. Use the exact recipe, "
            "optax_bridge.adafactor, which takes epsilon2.",
        ),
    ),
    cases=(
        Case(),
        Case({"min_dim_size_to_factor": 3, "beta1": 0.9}),
        Case({"min_dim_size_to_factor": 2, "weight_decay_rate": 0.01, "clipping_threshold": None}),
        Case({"factored": False, "multiply_by_parameter_scale": False, "decay_rate": 0.5}),
        Case({"step_offset": -10, "epsilon1": 1e-8, "clipping_threshold": 0.5}),
        Case(
            {
                "epsilon2": 1e-2,
                "min_dim_size_to_factor": 3,
                "beta1": 0.5,
                "dtype_momentum": Name("jax.numpy.bfloat16"),
            }
        ),
    ),
    notes=(
        "`epsilon2` cannot be set in Optax. With bfloat16 parameters the legacy statistics are "
        "float32, Optax's in the parameter's dtype. `weight_decay_rate` multiplies the parameter, "
        "at any learning rate."
    ),
    sources=("flax.optim.adafactor", "Shazeer and Stern 2018, arXiv:1804.04235"),
    inferred=_infer_settings,
)

"""A scale for each parameter, by its path or by its size."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from optax_bridge.metadata.trees import Leaf, Params, PyTree
from optax_bridge.spmd.config import ConfigOr, maybe_instantiate
from optax_bridge.spmd.optimizers.data import OptParam, opt_param_values
from optax_bridge.spmd.trees import (
    match_regex_rules,
    register_per_param_settings,
    tree_paths,
    vectorized_tree_map,
)

# A function of the parameters that returns a scale for each.
PerParamFn = Callable[[Params], PyTree]


def per_param_scale_by_path(
    *, scale_by_path: Sequence[tuple[str, float]], description: str, default_scale: float = 1.0
) -> PerParamFn:
    """Scales by the '/'-joined paths of the parameters.

    Args:
      scale_by_path: pairs of a regular expression for whole paths and a scale; the first that fits.
      description: what the scales are for, in listings of settings.
      default_scale: the scale of what no expression fits.
    """

    def scales_of(params: Params) -> PyTree:
        scales = jax.tree.map(
            lambda path: match_regex_rules(path, rules=scale_by_path, default_value=default_scale),
            tree_paths(params),
        )
        return register_per_param_settings(scales, description=description)

    return scales_of


def per_param_scale_by_rms(*, min_scale: float = 1e-4) -> PerParamFn:
    """Scales that are the parameters' root mean squares, per repeat of a repeated layer.

    Args:
      min_scale: the least scale.

    Returns:
      A function of the parameters; each scale has the rank of its parameter.
    """

    def scale(value: jax.Array) -> jax.Array:
        return jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(value), keepdims=True)), min_scale)

    return lambda params: vectorized_tree_map(scale, opt_param_values(params))


def param_scales(
    per_param_scale: ConfigOr[PerParamFn] | None, params: Params, *, use_param_scale: bool = True
) -> PyTree:
    """The scale of each parameter.

    Args:
      per_param_scale: a function of the parameters, or a config of one; None: 1.
      params: `OptParam`s.
      use_param_scale: whether a parameter's `weight_decay_scale`, if set, replaces that scale.

    Returns:
      A tree like `params`.
    """
    function = maybe_instantiate(per_param_scale)
    scales = jax.tree.map(lambda _: 1.0, params) if function is None else function(params)

    def scale_of(param: Leaf, scale: Leaf) -> Leaf:
        replaces = (
            use_param_scale and isinstance(param, OptParam) and param.weight_decay_scale is not None
        )
        return param.weight_decay_scale if replaces else scale

    return jax.tree.map(scale_of, params, scales)

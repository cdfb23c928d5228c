"""Optimizers of a learner, the schedules of their rates, and the specs of their states."""

from optax_bridge.spmd.layer import FactorizationSpec as FactorizationSpec
from optax_bridge.spmd.layer import ParameterSpec as ParameterSpec
from optax_bridge.spmd.optimizers.combining import DropNormThresholdFn as DropNormThresholdFn
from optax_bridge.spmd.optimizers.combining import SkipClipState as SkipClipState
from optax_bridge.spmd.optimizers.combining import chain as chain
from optax_bridge.spmd.optimizers.combining import (
    drop_norm_by_grad_norm_ema as drop_norm_by_grad_norm_ema,
)
from optax_bridge.spmd.optimizers.combining import (
    drop_norm_by_grad_norm_stddev as drop_norm_by_grad_norm_stddev,
)
from optax_bridge.spmd.optimizers.combining import named_chain as named_chain
from optax_bridge.spmd.optimizers.combining import offload_optimizer as offload_optimizer
from optax_bridge.spmd.optimizers.combining import (
    skip_and_clip_by_global_norm as skip_and_clip_by_global_norm,
)
from optax_bridge.spmd.optimizers.data import OptParam as OptParam
from optax_bridge.spmd.optimizers.data import OptStateSpec as OptStateSpec
from optax_bridge.spmd.optimizers.data import (
    PartitionedGradientTransformation as PartitionedGradientTransformation,
)
from optax_bridge.spmd.optimizers.data import adam_partition as adam_partition
from optax_bridge.spmd.optimizers.data import copy_partition as copy_partition
from optax_bridge.spmd.optimizers.data import opt_param_values as opt_param_values
from optax_bridge.spmd.optimizers.data import scale_by_lion as scale_by_lion
from optax_bridge.spmd.optimizers.data import trace_partition as trace_partition
from optax_bridge.spmd.optimizers.data import with_partition_fn as with_partition_fn
from optax_bridge.spmd.optimizers.from_optax import (
    ExactPartitionedTransformation as ExactPartitionedTransformation,
)
from optax_bridge.spmd.optimizers.from_optax import from_optax as from_optax
from optax_bridge.spmd.optimizers.from_optax import with_learning_rate as with_learning_rate
from optax_bridge.spmd.optimizers.presets import AdastarState as AdastarState
from optax_bridge.spmd.optimizers.presets import _compute_covariance as _compute_covariance
from optax_bridge.spmd.optimizers.presets import _compute_rms_norms as _compute_rms_norms
from optax_bridge.spmd.optimizers.presets import adafactor_optimizer as adafactor_optimizer
from optax_bridge.spmd.optimizers.presets import adam_optimizer as adam_optimizer
from optax_bridge.spmd.optimizers.presets import (
    adamw_decoupled_optimizer as adamw_decoupled_optimizer,
)
from optax_bridge.spmd.optimizers.presets import adamw_optimizer as adamw_optimizer
from optax_bridge.spmd.optimizers.presets import adastar_optimizer as adastar_optimizer
from optax_bridge.spmd.optimizers.presets import lion_optimizer as lion_optimizer
from optax_bridge.spmd.optimizers.presets import sgd_optimizer as sgd_optimizer
from optax_bridge.spmd.optimizers.scaling import (
    AddDecayedWeightsState as AddDecayedWeightsState,
)
from optax_bridge.spmd.optimizers.scaling import PerParamFn as PerParamFn
from optax_bridge.spmd.optimizers.scaling import add_decayed_weights as add_decayed_weights
from optax_bridge.spmd.optimizers.scaling import clip_by_block_rms as clip_by_block_rms
from optax_bridge.spmd.optimizers.scaling import clip_by_global_norm as clip_by_global_norm
from optax_bridge.spmd.optimizers.scaling import l2_regularizer as l2_regularizer
from optax_bridge.spmd.optimizers.scaling import (
    per_param_scale_by_path as per_param_scale_by_path,
)
from optax_bridge.spmd.optimizers.scaling import (
    per_param_scale_by_rms as per_param_scale_by_rms,
)
from optax_bridge.spmd.optimizers.scaling import replace_with_updates as replace_with_updates
from optax_bridge.spmd.optimizers.scaling import scale as scale
from optax_bridge.spmd.optimizers.scaling import (
    scale_by_param_block_rms as scale_by_param_block_rms,
)
from optax_bridge.spmd.optimizers.scaling import scale_by_schedule as scale_by_schedule
from optax_bridge.spmd.optimizers.scaling import scale_by_trust_ratio as scale_by_trust_ratio
from optax_bridge.spmd.optimizers.scaling import (
    scale_from_learning_rate as scale_from_learning_rate,
)
from optax_bridge.spmd.optimizers.scaling import scale_update_per_param as scale_update_per_param
from optax_bridge.spmd.optimizers.schedules import Schedule as Schedule
from optax_bridge.spmd.optimizers.schedules import ScheduleFn as ScheduleFn
from optax_bridge.spmd.optimizers.schedules import adafactor as adafactor
from optax_bridge.spmd.optimizers.schedules import adafactor_decay_rate as adafactor_decay_rate
from optax_bridge.spmd.optimizers.schedules import as_schedule_fn as as_schedule_fn
from optax_bridge.spmd.optimizers.schedules import constant_schedule as constant_schedule
from optax_bridge.spmd.optimizers.schedules import (
    constant_with_linear_warmup as constant_with_linear_warmup,
)
from optax_bridge.spmd.optimizers.schedules import cosine_decay_schedule as cosine_decay_schedule
from optax_bridge.spmd.optimizers.schedules import (
    cosine_with_linear_warmup as cosine_with_linear_warmup,
)
from optax_bridge.spmd.optimizers.schedules import decay_bias_correction as decay_bias_correction
from optax_bridge.spmd.optimizers.schedules import ema_schedule as ema_schedule
from optax_bridge.spmd.optimizers.schedules import exponential as exponential
from optax_bridge.spmd.optimizers.schedules import inverse_sqrt as inverse_sqrt
from optax_bridge.spmd.optimizers.schedules import (
    linear_schedule_with_warmup as linear_schedule_with_warmup,
)
from optax_bridge.spmd.optimizers.schedules import polynomial as polynomial
from optax_bridge.spmd.optimizers.schedules import segment_wise as segment_wise
from optax_bridge.spmd.optimizers.schedules import stepwise as stepwise
from optax_bridge.spmd.optimizers.schedules import warmup_stable_decay as warmup_stable_decay
from optax_bridge.spmd.optimizers.statistics import EmaState as EmaState
from optax_bridge.spmd.optimizers.statistics import ParamEmaState as ParamEmaState
from optax_bridge.spmd.optimizers.statistics import ema as ema
from optax_bridge.spmd.optimizers.statistics import param_ema as param_ema
from optax_bridge.spmd.optimizers.statistics import scale_by_factored_rms as scale_by_factored_rms

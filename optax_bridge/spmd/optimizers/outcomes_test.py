"""Three steps of every optimizer and transformation, beside the outcome that is in a file.

A line of the file is an array: updates and summaries of all three steps, the state after them. It
has dtype, shape, axes of the mesh, and a sum in which each element has another weight.
`RECORD=1 python -m pytest optax_bridge/spmd/optimizers/outcomes_test.py` writes it again.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import optax_bridge
from optax_bridge.recorded_test import assert_recorded
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.module import InvocationContext, new_output_collection, set_current_context
from optax_bridge.spmd.optimizers.optimizers_test import OPTIMIZERS, a_model
from optax_bridge.spmd.trees import flatten_items


def digest(value: Any) -> str:
    """The sum of an array's elements, the first times 1, the last times 2; a scalar itself."""
    array = np.asarray(value, np.float64)
    return f"{float(np.sum(array.ravel() * np.linspace(1, 2, array.size))):.7g}"


def shown(prefix: str, trees: Sequence[Any], specs: Any = None) -> list[str]:
    """A line for each array: its digest in each tree, and the axes that its spec has."""
    by_step = [flatten_items(tree) for tree in trees]
    axes = [""] * len(by_step[0])
    if specs is not None:
        assert jax.tree.structure(specs) == jax.tree.structure(trees[-1])
        axes = [f" {tuple(spec.mesh_axes)}" for _, spec in flatten_items(specs)]
        kinds = [(tuple(spec.shape), spec.dtype) for _, spec in flatten_items(specs)]
        assert kinds == [(leaf.shape, leaf.dtype) for _, leaf in by_step[0]]
    lines = []
    for along, *leaves in zip(axes, *by_step, strict=True):
        path, leaf = leaves[0][0], jnp.asarray(leaves[0][1])
        shape = "x".join(map(str, leaf.shape))
        digests = " ".join(digest(leaf) for _, leaf in leaves)
        lines.append(f"{prefix}{path} {leaf.dtype}[{shape}]{along} {digests}")
    return lines


def gradients(params: Any, step: int) -> Any:
    return jax.tree.map(lambda p: jnp.sin(3 * p.value + step) * (1.0 + step), params)


by_path = config_for_function(optimizers.per_param_scale_by_path).set(
    scale_by_path=[("b|layers/.*", 0.25)], description="decay", default_scale=3.0
)
by_rms = config_for_function(optimizers.per_param_scale_by_rms).set(min_scale=1.2)
clipped = config_for_function(optimizers.clip_by_block_rms).set(threshold=0.5)
warmup = config_for_function(optimizers.constant_with_linear_warmup).set(
    peak_lr=0.4, warmup_steps=2, begin_value=0.1
)
CASES: dict[str, Any] = {
    **OPTIMIZERS,
    "sgd, coupled": OPTIMIZERS["sgd"].clone(
        learning_rate=warmup, decouple_weight_decay=False, weight_decay_per_param_scale=by_path
    ),
    "sgd, plain": config_for_function(optimizers.sgd_optimizer).set(
        learning_rate=0.5, decouple_weight_decay=True
    ),
    "adam, bfloat16": OPTIMIZERS["adam"].clone(
        eps=0.3, mu_dtype=jnp.bfloat16, l2_regularizer_per_param_scale=by_path
    ),
    "adamw, clipped": OPTIMIZERS["adamw"].clone(
        eps=0.3, mu_dtype=jnp.bfloat16, adam_update_transformation=clipped,
        weight_decay_per_param_scale=by_path,
    ),
    "adamw_decoupled, clipped": OPTIMIZERS["adamw_decoupled"].clone(
        eps=0.3, mu_dtype=jnp.bfloat16, adam_update_transformation=clipped,
        weight_decay_per_param_scale=by_rms, update_schedule=warmup,
    ),
    "adafactor, whole": OPTIMIZERS["adafactor"].clone(
        learning_rate=None, b1=None, b2=0.75, eps=0.5, factored=False, clipping_threshold=None,
        multiply_by_parameter_scale=False, weight_decay_per_param_scale=by_path,
    ),
    "adafactor, bfloat16": OPTIMIZERS["adafactor"].clone(
        learning_rate=warmup, eps=0.5, dtype_momentum=jnp.bfloat16,
        weight_decay_scale_by_learning_rate_exponent=2.0, apply_scale_by_trust_ratio=False,
    ),
    "adafactor, no decay": OPTIMIZERS["adafactor"].clone(
        weight_decay=None, dtype_momentum=None, apply_scale_by_trust_ratio=False, b1=warmup
    ),
    "lion, plain": OPTIMIZERS["lion"].clone(
        mu_dtype=None, multiply_by_parameter_scale=False, weight_decay_per_param_scale=by_path
    ),
    "adastar, biased": OPTIMIZERS["adastar"].clone(
        gradient_ema_debias=False, gradient_square_ema_debias=False, update_ema_debias=True,
        eps=0.3, eps_square=0.1, raw_update_clipping_threshold=0.5, update_schedule=warmup,
        adam_update_transformation=clipped, weight_decay_per_param_scale=by_path,
    ),
    "adastar, no averages": OPTIMIZERS["adastar"].clone(
        gradient_ema_decay=None, gradient_square_ema_decay=None, update_ema_decay=None,
        raw_update_clipping_threshold=None, adam_update_transformation=None, verbosity=0,
    ),
    "adastar, of one scale": OPTIMIZERS["adastar"].clone(update_schedule=2.0, verbosity=0),
    "ema, int16": OPTIMIZERS["ema, int8"].clone(
        accumulator_dtype=jnp.int16, decay=warmup, debias=False
    ),
    "param_ema, warmed up": OPTIMIZERS["param_ema"].clone(
        decay=config_for_function(optimizers.ema_schedule).set(decay=0.9, warmup_steps=2)
    ),
    "param_ema, none": config_for_function(optimizers.param_ema),
    "clip_by_global_norm": config_for_function(optimizers.clip_by_global_norm).set(
        max_norm=2.0, drop_norm=8.0, eps=0.5
    ),
    "norm alone": config_for_function(optimizers.clip_by_global_norm),
    "clip_by_block_rms": clipped.clone(summary_suffix="before"),
    "scale_by_trust_ratio": config_for_function(optimizers.scale_by_trust_ratio).set(
        min_norm=2.0, trust_coefficient=0.5, eps=0.25
    ),
    "scale_by_param_block_rms": config_for_function(optimizers.scale_by_param_block_rms),
    "scale_update_per_param": config_for_function(optimizers.scale_update_per_param).set(
        per_param_scale=config_for_function(optimizers.per_param_scale_by_rms)
    ),
    "by path": config_for_function(optimizers.scale_update_per_param).set(per_param_scale=by_path),
    "replace_with_updates": config_for_function(optimizers.replace_with_updates),
    "add_decayed_weights": config_for_function(optimizers.add_decayed_weights).set(
        weight_decay=0.5, learning_rate=warmup, learning_rate_exponent=2.0, per_param_scale=by_path
    ),
    "l2_regularizer": config_for_function(optimizers.l2_regularizer).set(regularizer_weight=0.5),
    "scale_by_schedule": config_for_function(optimizers.scale_by_schedule).set(
        step_size_fn=warmup, name="size"
    ),
    "scale_by_lion": config_for_function(optimizers.scale_by_lion),
    "scale_by_factored_rms": config_for_function(optimizers.scale_by_factored_rms),
    "skip, by the deviation": OPTIMIZERS["skip, by averages"].clone(
        inner=OPTIMIZERS["sgd"], max_norm=None,
        drop_norm=config_for_function(optimizers.drop_norm_by_grad_norm_stddev).set(
            min_count=2, multipliers=[1, 2]
        ),
    ),
    "skip, averages of 2": OPTIMIZERS["skip, by averages"].clone(
        inner=OPTIMIZERS["sgd"], max_norm=2.0, eps=0.5, grad_norm_ema_decay=0.5,
        drop_norm=config_for_function(optimizers.drop_norm_by_grad_norm_ema).set(
            multipliers=[4, 30]
        ),
    ),
    "skip, large ones": OPTIMIZERS["skip, by a norm"].clone(
        inner=OPTIMIZERS["sgd"], drop_norm=4.0, max_norm=None
    ),
    "named": config_for_function(optimizers.named_chain).set(
        kwargs={"first": OPTIMIZERS["ema, int8"], "second": optax_bridge.momentum(0.5)}
    ),
    "offloaded, elsewhere": OPTIMIZERS["offloaded"].clone(
        optimizer=OPTIMIZERS["lion"], pattern="0/mu/(b|w)"
    ),
    "exact, then scaled": config_for_function(optimizers.chain).set(
        args=[optax_bridge.momentum(0.5), optimizers.scale(3.0)]
    ),
    "optax": config_for_function(optax.adamw).set(learning_rate=0.1),
    "exact adafactor": config_for_function(optax_bridge.adafactor).set(learning_rate=0.1),
    "exact, of a schedule": config_for_function(optimizers.with_learning_rate).set(
        optimizer=config_for_function(optax_bridge.momentum), learning_rate=warmup
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:opt_state.*which axes")
def test_three_steps(name):
    tx: Any = optimizers.chain(CASES[name])
    params, specs = a_model()
    if name == "adastar, of one scale":
        params["b"].weight_decay_scale = None
    state = tx.init(params)
    steps: Any = []
    for step in range(3):
        context = InvocationContext("root", None, None, None, True, None, new_output_collection())
        with set_current_context(context):
            updates, state = getattr(tx, "step", tx.update)(gradients(params, step), state, params)
        steps.append((updates, context.get_summaries()))
    updates, summaries = zip(*steps, strict=True)
    lines = [
        *shown("new ", updates),
        *shown("state ", [state], tx.partition(specs)),
        *shown("summary ", summaries),
    ]
    assert_recorded(Path(__file__).with_name("testdata") / "outcomes.json", name, lines)

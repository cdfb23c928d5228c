from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

import optax_bridge
from optax_bridge.spmd import optimizers
from optax_bridge.spmd.config import config_for_function
from optax_bridge.spmd.layer import FactorizationSpec, ParameterSpec
from optax_bridge.spmd.module import (
    InvocationContext,
    new_output_collection,
    set_current_context,
)
from optax_bridge.spmd.optimizers import OptParam, OptStateSpec
from optax_bridge.spmd.trees import VDict, flatten_items

ROW_COL = FactorizationSpec(axes=("row", "col"))


def opt_param(value, factorization=None, scale=None):
    return OptParam(jnp.asarray(value), factorization, scale)


def a_model() -> Any:
    """A plain parameter, one with roles, a stacked one, and what is no parameter."""
    key = jax.random.PRNGKey(0)
    values = {
        "b": jax.random.normal(key, (3,)),
        "w": jax.random.normal(key, (6, 4)),
        "layers": VDict(w=jax.random.normal(key, (2, 4, 5))),
    }
    factorization = {
        "b": None,
        "w": ROW_COL,
        "layers": VDict(w=FactorizationSpec(axes=(None, "row", "col"))),
    }
    axes = {
        "b": PartitionSpec(None),
        "w": PartitionSpec("data", "model"),
        "layers": VDict(w=PartitionSpec(None, "model", None)),
    }
    params = jax.tree.map(lambda v, f: OptParam(v, f, None), values, factorization)
    specs = jax.tree.map(
        lambda v, f, a: ParameterSpec(shape=v.shape, dtype=v.dtype, mesh_axes=a, factorization=f),
        values,
        factorization,
        axes,
        is_leaf=lambda n: n is None or isinstance(n, jax.Array),
    )
    params["frozen"] = specs["frozen"] = None
    params["masked"] = specs["masked"] = optax.MaskedNode()
    grads = jax.tree.map(lambda v: jnp.cos(v), values)
    grads["frozen"], grads["masked"] = None, optax.MaskedNode()
    return params, specs, grads


OPTIMIZERS = {
    "sgd": config_for_function(optimizers.sgd_optimizer).set(
        learning_rate=0.1, decouple_weight_decay=True, momentum=0.9, weight_decay=0.01
    ),
    "adam": config_for_function(optimizers.adam_optimizer).set(
        learning_rate=0.1, b1=0.9, b2=0.99, eps=1e-8, l2_regularizer_weight=0.1
    ),
    "adamw": config_for_function(optimizers.adamw_optimizer).set(
        learning_rate=config_for_function(optimizers.constant_with_linear_warmup).set(
            peak_lr=0.1, warmup_steps=3
        ),
        b1=0.9,
        b2=0.99,
        eps=1e-8,
        weight_decay=0.1,
    ),
    "adamw_decoupled": config_for_function(optimizers.adamw_decoupled_optimizer).set(
        learning_rate=0.1, b1=0.9, b2=0.99, eps=1e-8, weight_decay=0.1, update_schedule=1.0
    ),
    "adafactor": config_for_function(optimizers.adafactor_optimizer).set(
        learning_rate=0.1,
        b1=0.9,
        b2=config_for_function(optimizers.adafactor_decay_rate),
        multiply_by_parameter_scale=True,
        clipping_threshold=1.0,
        weight_decay=0.1,
        weight_decay_scale_by_learning_rate_exponent=1.0,
        apply_scale_by_trust_ratio=True,
    ),
    "ema, int8": config_for_function(optimizers.ema).set(decay=0.9, accumulator_dtype=jnp.int8),
    "param_ema": config_for_function(optimizers.param_ema).set(decay=0.9),
    "lion": config_for_function(optimizers.lion_optimizer).set(
        learning_rate=0.1,
        b1=0.9,
        b2=0.99,
        mu_dtype=jnp.bfloat16,
        weight_decay=0.1,
        multiply_by_parameter_scale=True,
    ),
    "adastar": config_for_function(optimizers.adastar_optimizer).set(
        learning_rate=0.1,
        gradient_ema_decay=0.9,
        gradient_ema_debias=True,
        gradient_square_ema_decay=0.99,
        gradient_square_ema_debias=True,
        eps=1e-8,
        eps_square=0.0,
        raw_update_clipping_threshold=1.0,
        update_ema_decay=0.9,
        update_ema_debias=False,
        adam_update_transformation=config_for_function(optimizers.scale_by_trust_ratio),
        weight_decay=0.1,
        update_schedule=1.0,
        verbosity=1,
    ),
}
OPTIMIZERS["skip, by a norm"] = config_for_function(optimizers.skip_and_clip_by_global_norm).set(
    inner=OPTIMIZERS["adam"], drop_norm=100.0, max_norm=1.0
)
OPTIMIZERS["skip, by averages"] = OPTIMIZERS["skip, by a norm"].clone(
    drop_norm=config_for_function(optimizers.drop_norm_by_grad_norm_ema), grad_norm_ema_decay=0.9
)
OPTIMIZERS["offloaded"] = config_for_function(optimizers.offload_optimizer).set(
    optimizer=OPTIMIZERS["adam"], pattern=".*/mu/.*"
)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_are_like_their_specs(name):
    tx = OPTIMIZERS[name].instantiate()
    params, specs, grads = a_model()
    state, state_specs = jax.eval_shape(lambda: tx.init(params)), tx.partition(specs)
    assert jax.tree.structure(state) == jax.tree.structure(state_specs)
    updates, after = jax.eval_shape(lambda g, s: tx.update(g, s, params), grads, state)
    assert jax.tree.structure(updates) == jax.tree.structure(grads)
    for (path, leaf), (_, spec), (_, new) in zip(
        flatten_items(state), flatten_items(state_specs), flatten_items(after), strict=True
    ):
        assert type(spec) is OptStateSpec, path
        assert tuple(spec.shape) == leaf.shape == new.shape, path
        assert spec.dtype == leaf.dtype == new.dtype, path
        assert len(spec.mesh_axes or ()) == leaf.ndim, path


def test_specs_as_programs_compare_them():
    _, specs, _ = a_model()
    tx = OPTIMIZERS["adafactor"].instantiate()
    factored = tx.partition(specs)[0]
    assert factored.count == OptStateSpec(shape=[], dtype=jnp.int32, mesh_axes=PartitionSpec())
    assert factored.v_row["w"] == OptStateSpec(
        shape=[4], dtype=jnp.float32, mesh_axes=PartitionSpec("model")
    )
    assert factored.v_col["w"] == OptStateSpec(
        shape=[6], dtype=jnp.float32, mesh_axes=PartitionSpec("data")
    )
    assert factored.v["w"] == OptStateSpec(
        shape=(1,), dtype=jnp.float32, mesh_axes=PartitionSpec(None)
    )
    adam = OPTIMIZERS["adam"].instantiate().partition(specs)[1]
    assert adam.count == OptStateSpec(shape=(), dtype=jnp.int32, mesh_axes=PartitionSpec())
    assert adam.mu["w"] == OptStateSpec(
        shape=(6, 4), dtype=jnp.float32, mesh_axes=PartitionSpec("data", "model")
    )
    scales = OPTIMIZERS["ema, int8"].instantiate().partition(specs).scale
    assert scales["w"].mesh_axes == PartitionSpec("model")
    there = optimizers.copy_partition(adam.mu, pattern="w", memory_kind="pinned_host")
    assert optimizers.copy_partition(there)["w"].memory_kind == "pinned_host"


@pytest.mark.parametrize("factored", [False, True])
def test_factored_rms_is_that_of_optax(factored):
    params = {"w": opt_param(jnp.ones((5, 3)), FactorizationSpec(axes=("row", "col")))}
    tx = optimizers.scale_by_factored_rms(factored, epsilon=0.1)
    reference: Any = optax.scale_by_factored_rms(factored, min_dim_size_to_factor=1, epsilon=0.1)
    state, expected = tx.init(params), reference.init({"w": params["w"].value})
    update = jax.jit(lambda g, s: tx.update(g, s, params))
    for seed in range(3):
        grads = {"w": jax.random.normal(jax.random.PRNGKey(seed), (5, 3))}
        updates, state = update(grads, state)
        wanted, expected = reference.update(grads, expected, {"w": params["w"].value})
        np.testing.assert_allclose(updates["w"], wanted["w"], rtol=1e-5)
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("axes", [("row", None), ("row", "row")])
def test_roles_that_are_no_pair(axes):
    params = {"w": opt_param(jnp.ones((5, 3)), FactorizationSpec(axes=axes))}
    with pytest.raises(ValueError, match="one 'row', one 'col'"):
        optimizers.scale_by_factored_rms().init(params)


def test_a_stacked_layer_is_clipped_and_scaled_slice_by_slice():
    value = jnp.stack([jnp.full((3,), 1.0), jnp.full((3,), 8.0)])
    grads = {"layers": VDict(w=value)}
    params = {"layers": VDict(w=opt_param(value))}
    context = InvocationContext("root", None, None, None, True, None, new_output_collection())
    with set_current_context(context):
        clipped, _ = optimizers.clip_by_block_rms(2.0, summary_suffix="norm").update(
            grads, optax.EmptyState(), params
        )
    np.testing.assert_allclose(clipped["layers"]["w"], [[1] * 3, [2] * 3])
    summaries = context.get_summaries()
    assert {name: float(x) for name, x in summaries.items()} == pytest.approx(
        {"layers/0/w/norm": 1.0, "layers/1/w/norm": 8.0}
    )
    scaled, _ = optimizers.scale_by_param_block_rms().update(grads, optax.EmptyState(), params)
    np.testing.assert_allclose(scaled["layers"]["w"], value * value)
    least = optimizers.per_param_scale_by_rms()({"w": opt_param([0.0])})["w"]
    assert float(least[0]) == pytest.approx(1e-4)


def test_the_trust_ratio_of_adafactor_is_that_of_the_whole_step():
    tx = config_for_function(optimizers.adafactor_optimizer).set(
        learning_rate=1.0, b1=None, b2=0.8, multiply_by_parameter_scale=False,
        clipping_threshold=None, weight_decay=0.5, apply_scale_by_trust_ratio=True,
        weight_decay_scale_by_learning_rate_exponent=0.0,
    ).instantiate()  # fmt: skip
    params = {"w": opt_param([3.0, 4.0])}
    updates, _ = tx.update({"w": jnp.array([1.0, -2.0])}, tx.init(params), params)
    assert float(jnp.linalg.norm(updates["w"])) == pytest.approx(5.0)  # the parameter's
    ratio, plain = optimizers.scale_by_trust_ratio(eps=5.0), {"w": params["w"].value}
    halved, _ = ratio.update(plain, ratio.init(params), params)
    assert float(jnp.linalg.norm(halved["w"])) == pytest.approx(2.5)


def test_clip_by_global_norm_drops_what_is_not_finite():
    grads = {"w": jnp.array([3.0, 4.0])}
    clip = optimizers.clip_by_global_norm(max_norm=1.0, drop_norm=100.0)
    np.testing.assert_allclose(clip.update(grads, (), None)[0]["w"], [0.6, 0.8], rtol=1e-6)
    grads = {"w": jnp.array([jnp.inf, 4.0])}
    context = InvocationContext("root", None, None, None, True, None, new_output_collection())
    with set_current_context(context):
        np.testing.assert_array_equal(clip.update(grads, (), None)[0]["w"], [0, 0])
        clip.update({"w": jnp.array([300.0, 4.0])}, (), None)
    assert context.get_summaries()["gradient_scale"] == 0


def test_a_parameters_own_scale_replaces_that_of_its_path():
    params = {
        "bias": opt_param([2.0]),
        "own": opt_param([2.0], scale=3.0),
        "w": opt_param([2.0]),
    }
    by_path = config_for_function(optimizers.per_param_scale_by_path).set(
        scale_by_path=[(".*bias", 0.0), ("own", 0.5)], description="weight decay"
    )
    tx = optimizers.add_decayed_weights(
        0.1, learning_rate_exponent=2.0, learning_rate=lambda s: s * 10.0, per_param_scale=by_path
    )
    grads = jax.tree.map(lambda p: jnp.zeros_like(p.value), params)
    updates, state = tx.update({**grads, "w": None}, tx.init(params), params)
    assert float(updates["bias"][0]) == 0 and updates["w"] is None
    assert float(updates["own"][0]) == pytest.approx(0.1 * 100 * 3 * 2)
    assert int(state.count) == 1
    frozen, _ = optimizers.scale_update_per_param(by_path).update(
        jax.tree.map(jnp.ones_like, grads), optax.EmptyState(), params
    )
    assert [float(frozen[k][0]) for k in ("bias", "own", "w")] == [0, 0.5, 1]


@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.startswith(("ad", "sgd", "lion"))])
def test_scales_by_path_are_those_of_the_decay(name):
    prefix = "l2_regularizer" if name == "adam" else "weight_decay"
    scales = {f"{prefix}_per_param_scale": lambda params: {"b": 0.0, "w": 1.0}}
    tx = OPTIMIZERS[name].clone(**scales).instantiate()
    params = {key: opt_param([2.0, 1.0]) for key in "bw"}
    updates, _ = tx.update(dict.fromkeys("bw", jnp.zeros(2)), tx.init(params), params)
    assert not updates["b"].any() and updates["w"].all()


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        ({"a": None, "b": None}, {"weight_decay_rate": 0.2}),
        ({"a": 3.0}, {"weight_decay_rate": 0.6}),
        ({"a": 3.0, "b": 0.0}, {"a/weight_decay_rate": 0.6, "b/weight_decay_rate": 0.0}),
    ],
)
def test_the_decay_rate_of_adastar_is_what_a_parameter_decays_by(scales, expected):
    tx = OPTIMIZERS["adastar"].clone(update_schedule=2.0, verbosity=0).instantiate()
    params = {name: opt_param([2.0], scale=scale) for name, scale in scales.items()}
    grads = jax.tree.map(lambda p: jnp.zeros_like(p.value), params)
    context = InvocationContext("root", None, None, None, True, None, new_output_collection())
    with set_current_context(context):
        updates, _ = tx.update(grads, tx.init(params), params)
    summaries = flatten_items(context.get_summaries())
    rates = {path.removeprefix("apply_lr_and_wd/"): float(x) for path, x in summaries}
    decays = {path: rate for path, rate in rates.items() if "weight_decay_rate" in path}
    assert rates["learning_rate"] == pytest.approx(0.2)
    assert decays == pytest.approx(expected)
    rate = decays.get("a/weight_decay_rate") or decays["weight_decay_rate"]
    assert float(updates["a"][0]) == pytest.approx(-2 * rate)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int16, jnp.int8, None])
def test_ema_is_near_the_average_in_every_accumulator(dtype):
    tx = optimizers.ema(0.5, accumulator_dtype=dtype)
    params = {"w": opt_param(jnp.zeros((4, 3))), "s": opt_param(jnp.zeros(()))}
    state = tx.init(params)
    kept = jnp.float32 if dtype is None else dtype
    assert state.ema["w"].dtype == kept and state.ema["s"].dtype == jnp.float32
    exact = cast(Any, optax.ema(0.5))
    values = jax.tree.map(lambda p: p.value, params)
    expected_state = exact.init(values)
    update = jax.jit(lambda g, s: tx.update(g, s, params))
    sizes = np.array([1.0, 100.0, 1.0], np.float32)
    for seed in range(3):
        numbers = jax.random.normal(jax.random.PRNGKey(seed), (4, 3))
        grads = {"w": numbers * sizes, "s": jnp.float32(seed)}
        updates, state = update(grads, state)
        expected, expected_state = exact.update(grads, expected_state)
        atol = {jnp.int8: 2e-2, jnp.bfloat16: 1e-2}.get(dtype, 1e-3)
        actual, wanted = (w / sizes for w in (updates["w"], expected["w"]))
        np.testing.assert_allclose(actual, wanted, atol=atol)
        np.testing.assert_allclose(updates["s"], expected["s"], rtol=1e-6)
    with pytest.raises(ValueError, match="float32, bfloat16, int16, int8"):
        optimizers.ema(0.5, accumulator_dtype=jnp.int32)


def test_param_ema_averages_floats_and_copies_the_rest():
    tx = optimizers.param_ema(decay=optimizers.ema_schedule(0.9))
    params = {"w": opt_param([2.0]), "n": opt_param([7])}
    updates, state = tx.update({}, tx.init(params), params)
    assert updates == {}
    np.testing.assert_allclose(state.ema["w"], [0.2], rtol=1e-5)
    np.testing.assert_array_equal(state.ema["n"], [7])
    with pytest.raises(ValueError, match="params"):
        tx.update({}, state, None)


def test_schedules_are_given_one_at_the_first_step():
    seen = []
    tx = optimizers.named_chain(
        a=optimizers.scale_by_schedule(lambda step: seen.append(int(step)) or -1.0),
        b=config_for_function(optimizers.scale).set(x=2.0),
    )
    params = {"w": opt_param([1.0])}
    state = tx.init(params)
    assert sorted(state) == ["a", "b"]
    _, state = tx.update({"w": jnp.ones(1)}, state, params)
    updates, state = tx.update({"w": jnp.ones(1)}, state, params)
    assert seen == [1, 2] and float(updates["w"][0]) == -2
    with pytest.raises(ValueError, match="chain: argument 0: expected a PartitionedGradientTr"):
        optimizers.chain(cast(Any, 1.0))


BRIDGE = {
    "adam": config_for_function(optax_bridge.adam).set(learning_rate=0.1),
    "adafactor": config_for_function(optax_bridge.adafactor).set(learning_rate=0.1),
    "optax": config_for_function(optax.adamw).set(learning_rate=0.1),
}


@pytest.mark.parametrize("name", BRIDGE)
@pytest.mark.filterwarnings("ignore:opt_state.*which axes")
def test_optax_transformations_have_specs_derived(name):
    tx = cast(Any, optimizers.from_optax(BRIDGE[name].instantiate()))
    params, specs, grads = a_model()
    state, state_specs = jax.eval_shape(lambda: tx.init(params)), tx.partition(specs)
    assert jax.tree.structure(state) == jax.tree.structure(state_specs)
    for leaf, spec in zip(jax.tree.leaves(state), jax.tree.leaves(state_specs), strict=True):
        assert (tuple(spec.shape), spec.dtype) == (leaf.shape, leaf.dtype)
    if name == "adafactor":
        # As with `scale_by_factored_rms`: the row axis is the one that v_row is a mean over.
        assert state.v_row["w"].shape == (4,)
        assert state_specs.v_row["w"].mesh_axes == PartitionSpec("model")
        assert state.v_row["layers"]["w"].shape == (2, 5)
        assert state_specs.v_col["layers"]["w"].mesh_axes == PartitionSpec(None, "model")
    else:
        assert any(
            s.mesh_axes == PartitionSpec("data", "model") for s in jax.tree.leaves(state_specs)
        )
    updates, _ = jax.eval_shape(lambda g, s: tx.update(g, s, params), grads, state)
    assert jax.tree.structure(updates) == jax.tree.structure(grads)
    if hasattr(tx, "step"):
        values, _ = jax.eval_shape(lambda g, s: tx.step(g, s, params), grads, state)
        assert jax.tree.structure(values) == jax.tree.structure(grads)


def test_an_exact_transformation_that_is_chained_twice_takes_the_step_once():
    once = cast(Any, optimizers.from_optax(optax_bridge.momentum(0.1)))
    tx = cast(Any, optimizers.chain(once, once))
    params, grads = {"w": opt_param([1.0, 2.0])}, {"w": jnp.array([3.0, 4.0])}
    values, _ = tx.step(grads, tx.init(params), params)
    updates, _ = once.update(grads, once.init(params), params)
    expected, _ = once.step(updates, once.init(params), params)
    np.testing.assert_array_equal(values["w"], expected["w"])


def test_the_first_step_of_a_schedule_is_1():
    for sgd in (optax_bridge.sgd, config_for_function(optax_bridge.sgd)):
        tx = cast(Any, optimizers.with_learning_rate(sgd, lambda step: 0.5 * step))
        assert tx.step(1.0, tx.init(3.0), 3.0)[0] == 2.5

# pyright: strict
"""Remedies for names that are gone, written by hand; `names.json` lists the names.

Importing this imports neither JAX nor NumPy.
"""

# The equal of a name today: dotted, or a builtin. The same value, or one that does the same.
RENAMED: dict[str, str] = {
    "chex.assert_tree_all_close": "chex.assert_trees_all_close",
    "chex.assert_tree_all_equal_comparator": "chex.assert_trees_all_equal_comparator",
    "chex.assert_tree_all_equal_shapes": "chex.assert_trees_all_equal_shapes",
    "chex.assert_tree_all_equal_structs": "chex.assert_trees_all_equal_structs",
    "flax.linen.ConvLSTM": "flax.linen.ConvLSTMCell",
    "flax.linen.recurrent.ConvLSTM": "flax.linen.ConvLSTMCell",
    "jax.config.config": "jax.config",
    "jax.experimental.enable_x64": "jax.enable_x64",
    "jax.experimental.maps.Mesh": "jax.sharding.Mesh",
    "jax.experimental.PartitionSpec": "jax.sharding.PartitionSpec",
    "jax.experimental.pjit.with_sharding_constraint": "jax.lax.with_sharding_constraint",
    "jax.experimental.with_sharding_constraint": "jax.lax.with_sharding_constraint",
    "jax.experimental.optimizers": "jax.example_libraries.optimizers",
    "jax.experimental.stax": "jax.example_libraries.stax",
    "jax.interpreters.xla.DeviceArray": "jax.Array",
    "jax.interpreters.xla._DeviceArray": "jax.Array",
    "jax.linear_util": "jax.extend.linear_util",
    "jax.nn.normalize": "jax.nn.standardize",
    "jax.numpy.DeviceArray": "jax.Array",
    "jax.numpy.alltrue": "jax.numpy.all",
    "jax.numpy.cumproduct": "jax.numpy.cumprod",
    "jax.numpy.product": "jax.numpy.prod",
    "jax.numpy.round_": "jax.numpy.round",
    "jax.numpy.row_stack": "jax.numpy.vstack",
    "jax.numpy.sometrue": "jax.numpy.any",
    "jax.numpy.trapz": "jax.numpy.trapezoid",
    "jax.ops.index": "jax.numpy.s_",
    "jax.profiler.StepTraceContext": "jax.profiler.StepTraceAnnotation",
    "jax.profiler.TraceContext": "jax.profiler.TraceAnnotation",
    "jax.profiler.trace_function": "jax.profiler.annotate_function",
    "jax.random.KeyArray": "jax.Array",
    "jax.random.PRNGKeyArray": "jax.Array",
    "jax.random.shuffle": "jax.random.permutation",
    "jax.tree_util.partial": "functools.partial",
    "jax.util.partial": "functools.partial",
    "jax.util.prod": "math.prod",
    "jax.tree_util.tree_multimap": "jax.tree.map",
    "jax.xla.DeviceArray": "jax.Array",
    "jax.xla._DeviceArray": "jax.Array",
    "numpy.Inf": "numpy.inf",
    "numpy.Infinity": "numpy.inf",
    "numpy.NAN": "numpy.nan",
    "numpy.NaN": "numpy.nan",
    "numpy.PINF": "numpy.inf",
    "numpy.alltrue": "numpy.all",
    "numpy.bool8": "numpy.bool_",
    "numpy.bytes0": "numpy.bytes_",
    "numpy.chararray": "numpy.char.chararray",
    "numpy.cfloat": "numpy.complex128",
    "numpy.clongfloat": "numpy.clongdouble",
    "numpy.complex": "complex",
    "numpy.complex_": "numpy.complex128",
    "numpy.cumproduct": "numpy.cumprod",
    "numpy.float": "float",
    "numpy.float_": "numpy.float64",
    "numpy.infty": "numpy.inf",
    "numpy.int": "int",
    "numpy.int0": "numpy.intp",
    "numpy.longcomplex": "numpy.clongdouble",
    "numpy.longfloat": "numpy.longdouble",
    "numpy.mat": "numpy.asmatrix",
    "numpy.object": "object",
    "numpy.object0": "numpy.object_",
    "numpy.product": "numpy.prod",
    "numpy.round_": "numpy.round",
    "numpy.row_stack": "numpy.vstack",
    "numpy.singlecomplex": "numpy.complex64",
    "numpy.sometrue": "numpy.any",
    "numpy.str": "str",
    "numpy.str0": "numpy.str_",
    "numpy.string_": "numpy.bytes_",
    "numpy.trapz": "numpy.trapezoid",
    "numpy.uint0": "numpy.uintp",
    "numpy.unicode": "str",
    "numpy.unicode_": "numpy.str_",
    "numpy.void0": "numpy.void",
    "optax.AdditiveWeightDecayState": "optax.EmptyState",
    "optax.additive_weight_decay": "optax.add_decayed_weights",
    **{
        f"{module}.tree_{name}": f"jax.tree.{name}"
        for module in ("jax", "jax.api")
        for name in ("flatten", "leaves", "map", "structure", "transpose", "unflatten")
    },
    **{
        f"{module}.{name}": new
        for module in ("jax", "jax.api")
        for name, new in (
            ("device_put_replicated", "flax.jax_utils.replicate"),
            ("partial", "functools.partial"),
            ("tree_multimap", "jax.tree.map"),
            ("treedef_is_leaf", "jax.tree_util.treedef_is_leaf"),
        )
    },
    # The same numbers in float32, but for the rounding of Adam.
    **{
        f"jax.experimental.optix.{name}": f"optax.{name}"
        for name in (
            "AddNoiseState",
            "ApplyEvery",
            "GradientTransformation",
            "OptState",
            "Params",
            "ScaleByAdamState",
            "ScaleByRStdDevState",
            "ScaleByRmsState",
            "ScaleByScheduleState",
            "TraceState",
            "Updates",
            "adam",
            "apply_every",
            "apply_updates",
            "chain",
            "clip",
            "clip_by_global_norm",
            "rmsprop",
            "scale",
            "scale_by_adam",
            "scale_by_rms",
            "scale_by_schedule",
            "scale_by_stddev",
            "sgd",
            "trace",
        )
    },
    "jax.experimental.optix.ClipByGlobalNormState": "optax.EmptyState",
    "jax.experimental.optix.ClipState": "optax.EmptyState",
    "jax.experimental.optix.InitFn": "optax.TransformInitFn",
    "jax.experimental.optix.InitUpdate": "optax.GradientTransformation",
    "jax.experimental.optix.ScaleState": "optax.EmptyState",
    "jax.experimental.optix.UpdateFn": "optax.TransformUpdateFn",
    "jax.experimental.optix.global_norm": "optax.tree.norm",
    # By its own name: JAX 0.9 has no `jax.ad`.
    "jax.api.ad": "jax.interpreters.ad",
    "jax.experimental.maps.ad": "jax.interpreters.ad",
    "jax.experimental.shard_map.ad": "jax.interpreters.ad",
    "jax.interpreters.pxla.ad": "jax.interpreters.ad",
    "jax.interpreters.xla.ad": "jax.interpreters.ad",
}

# JAX has these still, and warns that they end: `migrate` writes the new name.
DEPRECATED: dict[str, str] = {
    "jax.host_count": "jax.process_count",
    "jax.host_id": "jax.process_index",
    "jax.host_ids": "jax.process_indices",
}

# Functions of x, index and value -> the method of `x.at[index]` that does the same.
INDEXED: dict[str, str] = {
    "jax.ops.index_add": "add",
    "jax.ops.index_max": "max",
    "jax.ops.index_min": "min",
    "jax.ops.index_mul": "multiply",
    "jax.ops.index_update": "set",
}

# Where to look for a name under its own old name, in this order. What is found is in `names.json`.
MOVED: dict[str, tuple[str, ...]] = {
    "jax": ("jax.core", "jax.stages", "jax.extend", "jax.tree_util"),
    "jax.abstract_arrays": ("jax.core",),
    "jax.ad_checkpoint": ("jax",),
    "jax.api": ("jax", "jax.tree_util", "jax.core"),
    "jax.core": ("jax.extend.core", "jax.errors"),
    "jax.dtypes": ("jax.numpy",),
    "jax.experimental": ("jax.sharding", "jax.example_libraries"),
    "jax.experimental.array": ("jax",),
    "jax.experimental.gda_serialization.serialization": (
        "jax.experimental.array_serialization.serialization",
    ),
    "jax.experimental.maps": ("jax.sharding", "jax"),
    "jax.experimental.optimizers": ("jax.example_libraries.optimizers",),
    "jax.experimental.pjit": ("jax.sharding", "jax.tree_util", "jax.extend.linear_util"),
    "jax.experimental.sharding": ("jax.sharding",),
    "jax.experimental.shard_map": ("jax",),
    "jax.experimental.stax": ("jax.example_libraries.stax", "jax.nn", "jax.nn.initializers"),
    "jax.experimental.vectorize": ("jax.numpy",),
    "jax.experimental.x64_context": ("jax",),
    "jax.interpreters.partial_eval": ("jax.extend.core",),
    "jax.interpreters.pxla": ("jax.sharding", "jax"),
    "jax.interpreters.xla": ("jax.core", "jax.extend.core", "jax.errors", "jax"),
    "jax.lax": ("jax.lax", "jax.dtypes"),
    "jax.lax.lax": ("jax.lax",),
    "jax.lax.lax_control_flow": ("jax.lax",),
    "jax.lax.lax_fft": ("jax.lax",),
    "jax.lax.lax_parallel": ("jax.lax",),
    "jax.lax_linalg": ("jax.lax.linalg",),
    "jax.lib.xla_bridge": ("jax", "jax.extend.backend"),
    "jax.linear_util": ("jax.extend.linear_util",),
    "jax.nn.functions": ("jax.nn",),
    "jax.numpy.lax_numpy": ("jax.numpy",),
    "jax.ops.scatter": ("jax.ops",),
    "jax.prng": ("jax.extend.random",),
    "jax.source_info_util": ("jax.extend.source_info_util",),
    "jax.tree_util": ("jax.tree_util",),
    "numpy": ("numpy.exceptions", "numpy.lib", "numpy.lib.npyio", "numpy.lib.array_utils"),
    "numpy.compat": ("numpy",),
    "numpy.fft.helper": ("numpy.fft",),
    "numpy.lib.arraypad": ("numpy",),
    "numpy.lib.arraysetops": ("numpy",),
    "numpy.lib.function_base": ("numpy",),
    "numpy.lib.histograms": ("numpy",),
    "numpy.lib.index_tricks": ("numpy",),
    "numpy.lib.nanfunctions": ("numpy",),
    "numpy.lib.polynomial": ("numpy",),
    "numpy.lib.shape_base": ("numpy",),
    "numpy.lib.twodim_base": ("numpy",),
    "numpy.lib.type_check": ("numpy",),
    "numpy.lib.utils": ("numpy",),
    "numpy.linalg.linalg": ("numpy.linalg",),
    "optax": ("optax.contrib", "optax.monte_carlo", "optax.second_order"),
    "optax.experimental": ("optax", "optax.contrib"),
    "orbax.checkpoint.checkpoint_utils": ("orbax.checkpoint",),
    **{
        f"orbax.checkpoint.{name}": ("orbax.checkpoint",)
        for name in (
            "abstract_checkpointer",
            "array_checkpoint_handler",
            "async_checkpoint_handler",
            "async_checkpointer",
            "checkpoint_handler",
            "checkpointer",
            "json_checkpoint_handler",
            "pytree_checkpoint_handler",
        )
    },
}

# Modules that are gone and that `run` answers for with functions of its own.
ANSWERED = (
    "jax.config",
    "jax.experimental.host_callback",
    "jax.lib.xla_bridge",
    "jax.util",
)

_PRE_LINEN = (
    "nothing replaces the modules before Linen: port them to flax.linen, which lays "
    "parameters out in another way, or run the program with flax==0.3.6, the last release that "
    "has them. Its optimizers can move on their own"
)
_INTERNAL = (
    "it was internal to JAX: its public parts are in jax.extend and jax.core today; for "
    "gradients, batches and lowering use jax.grad, jax.vmap and jax.jit"
)
_OMNISTAGING = "remove the call: omnistaging has been on always since jax 0.2.12"
# Calls without effect today: a statement of one goes.
WITHOUT_EFFECT = ("jax.config.enable_omnistaging",)
_FLAGS = "define the flag with absl.flags, or use jax.config.update for JAX's own"

_SHARDED = (
    "all arrays have one class today: of what pmap returned, isinstance(x, jax.Array) and "
    "len(x.sharding.device_set) > 1 are true"
)

# What to do where no single name replaces it: of a name, or of all that is below it.
TEXTS: dict[str, str] = {
    "chex.CpuDevice": 'use jax.Device and compare device.platform with "cpu"',
    "chex.GpuDevice": 'use jax.Device and compare device.platform with "gpu"',
    "chex.TpuDevice": 'use jax.Device and compare device.platform with "tpu"',
    "flax.config.flax_lazy_rng": "remove it: random keys are lazy always",
    "flax.deprecated": _PRE_LINEN,
    "flax.nn": _PRE_LINEN,
    "flax.struct.PyTreeNodeMeta": "derive from flax.struct.PyTreeNode",
    "jax.clear_backends": "call jax.clear_caches(), and start a new process for other devices",
    "jax.config.DEFINE_bool": _FLAGS,
    "jax.config.DEFINE_enum": _FLAGS,
    "jax.config.DEFINE_float": _FLAGS,
    "jax.config.DEFINE_integer": _FLAGS,
    "jax.config.DEFINE_string": _FLAGS,
    "jax.config.FLAGS": "read jax.config.jax_enable_x64 and the like",
    "jax.config.disable_omnistaging": _OMNISTAGING,
    "jax.config.enable_omnistaging": _OMNISTAGING,
    "jax.config.flags": "read jax.config.jax_enable_x64 and the like",
    "jax.config.omnistaging_enabled": "take it for True: " + _OMNISTAGING,
    "jax.core": _INTERNAL,
    "jax.curry": "use functools.partial",
    "jax.custom_ivjp": "use jax.custom_vjp",
    "jax.custom_transforms": "use jax.custom_jvp or jax.custom_vjp",
    "jax.defjvp": "use jax.custom_jvp and its defjvp",
    "jax.defjvp_all": "use jax.custom_jvp and its defjvp",
    "jax.defvjp": "use jax.custom_vjp and its defvjp",
    "jax.defvjp_all": "use jax.custom_vjp and its defvjp",
    "jax.device_put_sharded": "jax.device_put(jnp.stack(shards), jax.sharding.NamedSharding("
    "jax.sharding.Mesh(devices, 'i'), jax.sharding.PartitionSpec('i')))",
    "jax.experimental.callback": "use jax.pure_callback, jax.experimental.io_callback or jax.debug",
    "jax.experimental.global_device_array": "use jax.Array and jax.make_array_from_callback",
    "jax.experimental.host_callback": "use jax.pure_callback for call, jax.debug.callback for "
    "id_tap, jax.debug.print for id_print",
    "jax.experimental.loops": "use jax.lax.fori_loop, while_loop and scan",
    "jax.experimental.maps": "use jax.shard_map or jax.vmap with axis_name; `with mesh:` takes a "
    "jax.sharding.Mesh",
    "jax.experimental.optix": "it became optax, whose names and signs are the same; optimizers "
    "that add noise draw other numbers",
    "jax.experimental.optix.add_noise": "optax.add_noise(eta**2, 2 * gamma, key=seed): optix took "
    "eta / (1 + count)**gamma for the standard deviation, Optax takes it for the variance. The "
    "random numbers are others",
    "jax.experimental.optix.noisy_sgd": "optax.chain(optax.scale(-learning_rate), "
    "optax.add_noise(eta**2, 2 * gamma, key=seed)): optix added noise to the scaled update, and "
    "eta / (1 + count)**gamma was its standard deviation; optax.noisy_sgd adds it to the gradient, "
    "and that is its variance. The defaults are eta=0.01, gamma=0.55, seed=0; the random numbers "
    "are others",
    "jax.interpreters": _INTERNAL,
    "jax.interpreters.pxla.ShardedDeviceArray": _SHARDED,
    "jax.invertible": "use jax.custom_vjp",
    "jax.lax.infeed": "use jax.pure_callback or feed the data as arguments",
    "jax.lax.outfeed": "use jax.debug.callback",
    "jax.lax.tie_in": "it returned its second argument",
    "jax.lax.xeinsum": "use jax.numpy.einsum",
    "jax.lax.zeros_like_array": "use jax.numpy.zeros_like",
    "jax.lib": "use jax and jax.extend.backend",
    "jax.lib.xla_bridge.get_backend": "jax.devices()[0].client",
    "jax.mask": "pad, and mask with jax.numpy.where",
    "jax.numpy.NINF": "-jnp.inf",
    "jax.numpy.NZERO": "-0.0",
    "jax.numpy.PZERO": "0.0",
    "jax.numpy.fix": "jnp.trunc(x)",
    "jax.numpy.in1d": "jnp.isin(jnp.ravel(x), values)",
    "jax.numpy.issubsctype": "use jnp.issubdtype",
    "jax.numpy.msort": "jnp.sort(x, axis=0)",
    **{name: f"x.at[index].{method}(value)" for name, method in INDEXED.items()},
    "jax.sharding.GSPMDSharding": "use jax.sharding.NamedSharding",
    "jax.sharding.OpShardingSharding": "use jax.sharding.NamedSharding",
    "jax.sharding.PmapSharding": "use jax.sharding.NamedSharding",
    "jax.sharding.PositionalSharding": "use jax.sharding.NamedSharding",
    "jax.pxla.ShardedDeviceArray": _SHARDED,
    "jax.shapecheck": "use jax.eval_shape",
    "jax.soft_pmap": "use jax.shard_map, or jax.vmap inside jax.pmap",
    "jax.test_util": "it was for JAX's own tests: use absl.testing and numpy.testing",
    "jax.test_util.check_close": "jax.tree.map(np.testing.assert_allclose, xs, ys)",
    "jax.test_util.check_eq": "jax.tree.map(np.testing.assert_array_equal, xs, ys)",
    "jax.tree_util.build_tree": "use jax.tree.unflatten",
    "jax.tree_util.register_keypaths": "use jax.tree_util.register_pytree_with_keys",
    "jax.util": "write it out with zip(strict=True), functools and itertools",
    "jax.util.safe_map": "[f(*args) for args in zip(xs, ys, strict=True)]",
    "jax.util.safe_zip": "list(zip(xs, ys, strict=True))",
    "jax.util.unzip2": "tuple(zip(*pairs)) or ((), ())",
    "jax.util.unzip3": "tuple(zip(*triples)) or ((), (), ())",
    "jax.xla_computation": "jax.jit(f).lower(*args).compiler_ir('hlo')",
    "numpy.MachAr": "use numpy.finfo",
    "numpy.NINF": "-np.inf",
    "numpy.NZERO": "-0.0",
    "numpy.PZERO": "0.0",
    "numpy.alen": "len(a)",
    "numpy.array_api": "numpy itself follows the standard; or the package array-api-strict",
    "numpy.asfarray": "np.asarray(a, dtype=np.float64)",
    "numpy.asscalar": "a.item()",
    "numpy.cast": "np.asarray(a, dtype=dtype)",
    "numpy.deprecate": "use warnings.warn",
    "numpy.distutils": "use setuptools, or meson-python",
    "numpy.disp": "use print",
    "numpy.find_common_type": "use np.promote_types or np.result_type",
    "numpy.in1d": "np.isin(np.ravel(x), values)",
    "numpy.issctype": "isinstance(t, type) and issubclass(t, np.generic)",
    "numpy.issubclass_": "use issubclass",
    "numpy.issubsctype": "use np.issubdtype",
    "numpy.lookfor": "search the documentation",
    "numpy.maximum_sctype": "name the dtype",
    "numpy.msort": "np.sort(a, axis=0)",
    "numpy.nbytes": "np.dtype(t).itemsize",
    "numpy.obj2sctype": "np.result_type(obj).type",
    "numpy.recfromcsv": "np.genfromtxt(file, delimiter=',', names=True, dtype=None, "
    "case_sensitive='lower').view(np.recarray)",
    "numpy.recfromtxt": "np.genfromtxt(file, dtype=None).view(np.recarray)",
    "numpy.safe_eval": "use ast.literal_eval",
    "numpy.sctype2char": "np.dtype(t).char",
    "numpy.sctypes": "name the dtypes",
    "numpy.set_string_function": "use np.set_printoptions",
    "numpy.typeDict": "use np.sctypeDict",
    "numpy.ndarray.itemset": "a[index] = value",
    "numpy.ndarray.newbyteorder": "a.view(a.dtype.newbyteorder(order))",
    "numpy.ndarray.ptp": "np.ptp(a)",
    "numpy.ndarray.tostring": "a.tobytes()",
    "optax.InitUpdate": "write the two functions out, or use optax.GradientTransformation",
    "optax.MaybeUpdateState": "use optax.conditionally_transform",
    "optax.maybe_update": "use optax.conditionally_transform",
    "optax.ScaleByFromageState": "use optax.fromage",
    "optax.scale_by_fromage": "use optax.fromage",
    "optax.FactoredParameterStats": "use optax.FactoredState",
}
for _name in ("fv", "ipmt", "irr", "mirr", "nper", "npv", "pmt", "ppmt", "pv", "rate"):
    TEXTS[f"numpy.{_name}"] = f"use numpy_financial.{_name} of the package numpy-financial"

# Function -> its first parameters, by the names under which they could be given. Today they go by
# position alone.
BY_POSITION: dict[str, tuple[str, ...]] = {
    "jax.jit": ("fun",),
    "jax.numpy.clip": ("a",),
    "jax.numpy.imag": ("val",),
    "jax.numpy.real": ("val",),
    "jax.numpy.where": ("condition", "x", "y"),
}

# Function -> how many arguments its new name takes by position as it did, and what to do with more.
ALIKE_BY_POSITION: dict[str, tuple[int, str]] = {
    "jax.experimental.optix.rmsprop": (
        3,
        "use optax.rmsprop, and give centered by name: optix took it in the fourth place, where "
        "Optax takes initial_scale",
    ),
}

# Function -> keyword -> today's keyword, or what to do.
KEYWORDS: dict[str, dict[str, str]] = {
    "flax.linen.GRUCell.initialize_carry": {"batch_dims": "input_shape = batch_dims + features"},
    "flax.linen.LSTMCell.initialize_carry": {"batch_dims": "input_shape = batch_dims + features"},
    "jax.Array.clip": {"out": "remove it: arrays do not change"},
    "jax.checkpoint": {"concrete": "name what is static with static_argnums, or leave it out"},
    "jax.dtypes.canonicalize_dtype": {"allow_opaque_dtype": "allow_extended_dtype"},
    "jax.experimental.pjit.pjit": {
        "in_axis_resources": "in_shardings",
        "out_axis_resources": "out_shardings",
    },
    "jax.lax.cond": {"linear": "remove it: it had no effect"},
    "jax.lax.with_sharding_constraint": {"axis_resources": "shardings"},
    "jax.nn.log_softmax": {"initial": "remove it: where= alone is enough"},
    "jax.nn.softmax": {"initial": "remove it: where= alone is enough"},
    "jax.numpy.broadcast_to": {"arr": "array"},
    "jax.numpy.clip": {
        "a_max": "max",
        "a_min": "min",
        "out": "remove it: arrays do not change",
    },
    "jax.numpy.nanpercentile": {"interpolation": "method"},
    "jax.numpy.nanquantile": {"interpolation": "method"},
    "jax.numpy.ndarray.clip": {
        "a_max": "max",
        "a_min": "min",
        "out": "remove it: arrays do not change",
    },
    "jax.numpy.percentile": {"interpolation": "method"},
    "jax.numpy.quantile": {"interpolation": "method"},
    "jax.numpy.reshape": {"newshape": "shape"},
    "jax.remat": {"concrete": "name what is static with static_argnums, or leave it out"},
    "jax.scipy.linalg.solve": {"sym_pos": "assume_a='pos'"},
    "numpy.histogram": {"normed": "density"},
    "numpy.histogram2d": {"normed": "density"},
    "numpy.histogramdd": {"normed": "density"},
    "numpy.nanpercentile": {"interpolation": "method"},
    "numpy.nanquantile": {"interpolation": "method"},
    "numpy.percentile": {"interpolation": "method"},
    "numpy.quantile": {"interpolation": "method"},
    "numpy.reshape": {"newshape": "shape"},
}


def package(name: str) -> str:
    """The package of the inventory that a dotted name belongs to."""
    if name == "orbax.checkpoint" or name.startswith("orbax.checkpoint."):
        return "orbax.checkpoint"
    return name.partition(".")[0]


def text(name: str) -> str | None:
    """Returns the remedy for a name without an equal: its own text, or that of what holds it."""
    if name in MOVED:
        return f"its names are in {' and '.join(MOVED[name])} today"
    owner, _, last = name.rpartition(".")
    for later in MOVED.get(owner, ()):
        if f"{later}.{last}" in TEXTS:
            return TEXTS[f"{later}.{last}"]
    while name:
        if name in TEXTS:
            return TEXTS[name]
        name = name.rpartition(".")[0]
    return None

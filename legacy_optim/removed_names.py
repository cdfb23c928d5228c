"""JAX names of `flax.optim`'s time that JAX has removed, and what answers now.

A table for `legacy_optim.shim`, which imports it after JAX: nothing here changes JAX.
"""

import functools
import sys
import types
from collections.abc import Callable

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from legacy_optim.gone import remedies
from legacy_optim.typing import PyTree


class _Index:
    """`jax.ops.index`: `index[1:, 0]` is the index itself."""

    def __getitem__(self, key: PyTree) -> PyTree:
        return key


def _updater(method: str) -> Callable[[PyTree, PyTree, PyTree], jax.Array]:
    """`jax.ops.index_<method>` as `x.at[index].<method>(value)`."""

    def update(
        x: PyTree, idx: PyTree, y: PyTree, *unused: PyTree, **also_unused: PyTree
    ) -> jax.Array:
        del unused, also_unused  # indices_are_sorted and unique_indices: promises, not behaviour
        if isinstance(idx, list):
            idx = tuple(idx) if any(map(_is_axis, idx)) else jnp.asarray(idx, None if idx else int)
        return getattr(jnp.asarray(x).at[idx], method)(y)

    return update


def _is_axis(index: PyTree) -> bool:
    """True if an entry made old NumPy read the whole list as a tuple of indices."""
    return (
        index is None
        or index is ...
        or isinstance(index, slice | list | tuple)
        or np.ndim(index) > 0
    )


def _in1d(ar1: PyTree, ar2: PyTree, **kwargs: PyTree) -> jax.Array:
    return jnp.isin(jnp.ravel(jnp.asarray(ar1)), ar2, **kwargs)


def _device_put_sharded(shards: PyTree, devices: PyTree) -> PyTree:
    """Stacks the shards along a new leading axis that is split over the devices."""
    mesh = jax.sharding.Mesh(list(devices), ("devices",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
    return jax.tree.map(lambda *leaves: jax.device_put(jnp.stack(leaves), split), *shards)


def _device_put_replicated(x: PyTree, devices: PyTree) -> PyTree:
    """Stacks as many copies as there are devices, one on each."""
    return _device_put_sharded([x] * len(devices), devices)


def _tie_in(x: PyTree, y: PyTree) -> PyTree:
    del x
    return y


def _curry(function: Callable[..., PyTree]) -> Callable[..., PyTree]:
    return functools.partial(functools.partial, function)


def _xla_computation(function: Callable[..., PyTree], **kwargs: PyTree) -> Callable[..., PyTree]:
    """`jax.xla_computation(f)(x)`: what XLA is given to compile."""
    options = {key: value for key, value in kwargs.items() if key == "static_argnums"}
    unknown = sorted(kwargs.keys() - options.keys())
    if unknown:
        raise TypeError(
            f"jax.xla_computation({', '.join(unknown)}=...): jax.xla_computation is gone, and its "
            "stand-in takes static_argnums alone. Use jax.jit(f).lower(*args) instead"
        )

    @functools.wraps(function)
    def computation(*args: PyTree, **more: PyTree) -> PyTree:
        return jax.jit(function, **options).lower(*args, **more).compiler_ir("hlo")

    return computation


# The class of arrays, of which `type(x)` is, and which tracers are not, as then. JAX names it
# nowhere in public, and to ask an array would start a backend.
_ARRAY: type = getattr(sys.modules.get("jax._src.array"), "ArrayImpl", jax.Array)


class _DeviceArrayMeta(type):
    def __instancecheck__(cls, instance: PyTree) -> bool:
        return isinstance(instance, _ARRAY)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _ARRAY)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is _ARRAY

    def __hash__(cls) -> int:
        return hash(_ARRAY)

    def __call__(cls, *args: PyTree, **kwargs: PyTree) -> PyTree:
        raise TypeError(
            "jax.interpreters.xla._DeviceArray(...) is gone: jax.Array is abstract and "
            "cannot be made from a buffer. Use jax.numpy.asarray, or jax.device_put"
        )


class _DeviceArray(metaclass=_DeviceArrayMeta):
    """The class of arrays, to ask of; what called it gets an error that says what to call."""


class _ShardedDeviceArrayMeta(type):
    def __instancecheck__(cls, instance: PyTree) -> bool:
        sharding = getattr(instance, "sharding", None) if isinstance(instance, _ARRAY) else None
        return sharding is not None and not isinstance(sharding, jax.sharding.SingleDeviceSharding)


class _ShardedDeviceArray(metaclass=_ShardedDeviceArrayMeta):
    """The class of what pmap returns, for `isinstance`: today all arrays have one class."""


def _safe_zip(*lists: PyTree) -> list[PyTree]:
    return list(zip(*map(list, lists), strict=True))


def _safe_map(function: Callable[..., PyTree], *lists: PyTree) -> list[PyTree]:
    return [function(*args) for args in _safe_zip(*lists)]


def _unzip2(pairs: PyTree) -> tuple[tuple[PyTree, ...], tuple[PyTree, ...]]:
    pairs = list(pairs)
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _unzip3(triples: PyTree) -> tuple[tuple[PyTree, ...], ...]:
    triples = list(triples)
    return tuple(tuple(triple[i] for triple in triples) for i in range(3))


def _id_tap(
    tap_func: Callable[..., PyTree],
    arg: PyTree,
    *,
    result: PyTree = None,
    tap_with_device: bool = False,
    **kwargs: PyTree,
) -> PyTree:
    """Calls `tap_func(arg, transforms)` on the host while the program runs."""
    if tap_with_device:
        raise TypeError(
            "host_callback.id_tap(tap_with_device=True): host_callback is gone, and its "
            "stand-in knows no devices. Use jax.debug.callback instead"
        )
    jax.debug.callback(lambda value: tap_func(value, (), **kwargs), arg)
    return arg if result is None else result


def _id_print(arg: PyTree, *, result: PyTree = None, what: str = "", **kwargs: PyTree) -> PyTree:
    """Prints a value while the program runs; options of its layout are left out."""
    del kwargs
    jax.debug.callback(lambda value: print(f"{what} {value}".strip()), arg)
    return arg if result is None else result


def _call(
    callback_func: Callable[..., PyTree],
    arg: PyTree,
    *,
    result_shape: PyTree = None,
    **kwargs: PyTree,
) -> PyTree:
    """Calls a function on the host, and takes what it returns."""
    del kwargs  # call_with_device, device_index, identity: hints
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), result_shape)
    return io_callback(callback_func, shapes, arg, ordered=False)


def _nothing(*args: PyTree, **kwargs: PyTree) -> None:
    del args, kwargs


def _check_eq(xs: PyTree, ys: PyTree, err_msg: str = "") -> None:
    """Raises an AssertionError where two trees differ in an element."""
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y, err_msg=err_msg), xs, ys)


_XLA = types.SimpleNamespace(DeviceArray=_ARRAY, _DeviceArray=_DeviceArray)
_PXLA = types.SimpleNamespace(ShardedDeviceArray=_ShardedDeviceArray)

# Module -> name -> what answers where the module itself no longer does, and where no public name
# of today is known to `legacy_optim.gone`.
NAMES: dict[str, dict[str, PyTree]] = {
    "jax": {
        "xla": _XLA,
        "pxla": _PXLA,
        "device_put_replicated": _device_put_replicated,
        "device_put_sharded": _device_put_sharded,
        "curry": _curry,
        "xla_computation": _xla_computation,
    },
    "jax.api": {
        "xla_computation": _xla_computation,
        "device_put_replicated": _device_put_replicated,
        "device_put_sharded": _device_put_sharded,
    },
    # Omnistaging cannot be off any more.
    "jax.config": {
        "config": jax.config,
        "enable_omnistaging": _nothing,
        "omnistaging_enabled": True,
        "FLAGS": jax.config,
        "flags": types.SimpleNamespace(FLAGS=jax.config),
    },
    "jax.test_util": {"check_eq": _check_eq},
    "jax.util": {
        "safe_map": _safe_map,
        "safe_zip": _safe_zip,
        "unzip2": _unzip2,
        "unzip3": _unzip3,
    },
    "jax.ops": {
        "index": _Index(),
        **{name.rpartition(".")[2]: _updater(method) for name, method in remedies.INDEXED.items()},
    },
    "jax.numpy": {
        "DeviceArray": _ARRAY,
        "NINF": -jnp.inf,
        "PZERO": 0.0,
        "NZERO": -0.0,
        "fix": jnp.trunc,
        "in1d": _in1d,
        "issubsctype": jnp.issubdtype,
        "msort": functools.partial(jnp.sort, axis=0),
    },
    "jax.lax": {"tie_in": _tie_in, "zeros_like_array": jnp.zeros_like},
    "jax.interpreters.xla": {"DeviceArray": _ARRAY, "_DeviceArray": _DeviceArray},
    "jax.interpreters.pxla": {"ShardedDeviceArray": _ShardedDeviceArray},
    "jax.lib.xla_bridge": {"get_backend": lambda platform=None: jax.devices(platform)[0].client},
    "jax.experimental.host_callback": {
        "id_tap": _id_tap,
        "id_print": _id_print,
        "call": _call,
        "barrier_wait": lambda *unused: jax.effects_barrier(),
    },
}

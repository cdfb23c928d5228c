"""Input of a trainer: each process reads its own part, and the parts become one global array."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.config import (
    REQUIRED,
    ConfigOr,
    Required,
    config_class,
    maybe_instantiate,
)
from optax_bridge.spmd.dispatch import (
    DISPATCH_KEY,
    BaseInputDispatcher,
    is_keys,
    padded_to_multiple,
    without_padding,
)
from optax_bridge.spmd.dispatch import InputDispatcher as InputDispatcher
from optax_bridge.spmd.dispatch import SpmdInputDispatcher as SpmdInputDispatcher
from optax_bridge.spmd.module import Module, nowrap
from optax_bridge.spmd.trees import TensorSpec, current_mesh, flatten_items, tree_paths

_NO_NUMBERS = "OSUMm"  # kinds of NumPy's dtypes: objects, texts, times
_wrap_key_data = jax.jit(jax.random.wrap_key_data, static_argnames="impl")


class Input(Module):
    """Batches for a trainer or an evaler; subclasses override `dataset`."""

    @config_class
    class Config(Module.Config):
        """Configures Input."""

        partition_spec: PartitionSpec | None = None
        input_dispatcher: BaseInputDispatcher.Config | None = None
        input_partitioner: ConfigOr[Callable[[PyTree], PyTree]] | None = None

    def __init__(self, cfg: Config, *, parent: Module | None):
        super().__init__(cfg, parent=parent)
        self._partitioner = maybe_instantiate(cfg.input_partitioner)
        self._dispatcher: BaseInputDispatcher | None = None
        self._partitions: dict[object, PartitionSpec] = {}
        if cfg.input_dispatcher is not None:
            self._dispatcher = self._add_child("input_dispatcher", cfg.input_dispatcher)

    @nowrap
    def dataset(self) -> Iterable[PyTree]:
        """This process's batches, trees of host arrays whose first axis is this process's part.

        An iterator of them that has `get_state()` and `set_state(state)` can be saved with a
        checkpoint, and a training be resumed to the bit; by another number of processes if it says
        `state_of_all_processes = True`, as its state counts global batches.
        """
        raise NotImplementedError(f"{type(self).__name__}.dataset")

    @nowrap
    def batches(self, it: Iterable[PyTree]) -> Iterator[PyTree]:
        """The batches of an iterator, padded by the dispatcher if there is one.

        Arrays of JAX stay on their devices if there is one process, and keys stay keys; everything
        else becomes arrays of NumPy.
        """
        for batch in it:
            leaves, treedef = jax.tree.flatten(batch)
            arrays = treedef.unflatten([_array_of(leaf) for leaf in leaves])
            dispatcher = self._dispatcher
            yield arrays if dispatcher is None else dispatcher.logical_to_physical_batch(arrays)

    @property
    def partition_spec(self) -> PartitionSpec:
        """The layout of a batch when it is read: along its first axis over all devices."""
        if self._dispatcher is not None:
            return self._dispatcher.partition_spec
        mesh = current_mesh()
        return PartitionSpec(None if mesh is None else tuple(mesh.axis_names))

    @nowrap
    def partition_for(self, batch: PyTree) -> PartitionSpec:
        """`partition_spec`, or the config's, if the former cannot divide this process's batch.

        Args:
          batch: a tree of host arrays.

        Returns:
          A specification of the first axis.

        Raises:
          ValueError: neither divides the batch; the message names the array.
        """
        mesh = current_mesh()
        batch_spec = self._config.partition_spec
        choices = [
            self.partition_spec,
            *([] if batch_spec is None else [PartitionSpec(*batch_spec[:1])]),
        ]
        for spec in choices:
            ways = _ways(mesh, spec)
            if all(_global_size(leaf) % ways == 0 for leaf in jax.tree.leaves(batch)):
                return spec
        ways = _ways(mesh, choices[-1])
        path, leaf = next(item for item in flatten_items(batch) if _global_size(item[1]) % ways)
        raise ValueError(
            f"{self.path()}: batch {path!r} has {_global_size(leaf)} examples (shape "
            f"{np.shape(leaf)} in each of {jax.process_count()} processes), which cannot be "
            f"divided over {ways} devices, axes {choices[-1]} of the mesh "
            f"{dict(mesh.shape) if mesh else {}}. Make the batch a multiple of {ways}, or the "
            "mesh's batch axes smaller (mesh_shape, batch_axis_names)."
        )

    @nowrap
    def global_batch(self, batch: PyTree, *, pad: bool = False) -> PyTree:
        """Returns the global arrays of this process's part of a batch.

        Args:
          batch: a tree of arrays, NumPy's or JAX's; a dict if it is to be padded.
          pad: whether a batch that the devices do not divide is padded, as the last one of an
            evaluation is; `dispatch_global_batch` removes the padding.

        Raises:
          ValueError: the devices do not divide the batch, or it holds no numbers; the message names
            the array.
        """
        if pad and isinstance(batch, dict) and DISPATCH_KEY not in batch:
            spec = self._config.partition_spec or self.partition_spec
            batch = padded_to_multiple(batch, _ways(current_mesh(), spec))
        return host_to_global_array(batch, partition=self._checked_partition(batch))

    @nowrap
    def step_batch(self, batch: PyTree) -> PyTree:
        """Returns a batch as a jitted step takes it; raises as `global_batch` does.

        To one device `jax.jit` moves arrays of NumPy itself, in less of the processor's time.
        """
        mesh = current_mesh()
        is_on_one = mesh is not None and mesh.size == 1
        if is_on_one and all(_is_numbers_of_numpy(leaf) for leaf in jax.tree.leaves(batch)):
            return batch
        return self.global_batch(batch)

    def _checked_partition(self, batch: PyTree) -> PartitionSpec:
        """The `partition_for` of numbers; asked once for all batches of the same arrays."""
        leaves, treedef = jax.tree.flatten(batch)
        arrays = [_array_of(leaf) for leaf in leaves]
        layout = current_mesh(), treedef, *((array.shape, array.dtype) for array in arrays)
        if layout not in self._partitions:
            for (path, _), array in zip(flatten_items(batch), arrays, strict=True):
                if isinstance(array, np.ndarray) and array.dtype.kind in _NO_NUMBERS:
                    raise ValueError(
                        f"{self.path()}: batch {path!r}: expected numbers, found dtype "
                        f"{array.dtype}. Leave it out of the source, or encode it there."
                    )
            self._partitions[layout] = self.partition_for(batch)
        return self._partitions[layout]

    @nowrap
    def dispatch_global_batch(self, global_batch: PyTree) -> PyTree:
        """Lays a global batch out over the mesh, without its padding; within `jax.jit`."""
        spec = self._config.partition_spec
        ways = 1 if spec is None else _ways(current_mesh(), spec)

        def constrain(x: jax.Array) -> jax.Array:
            if not spec or not np.ndim(x) or len(x) % ways:
                return x
            return jax.lax.with_sharding_constraint(x, PartitionSpec(spec[0]))

        global_batch = jax.tree.map(constrain, global_batch)
        if isinstance(global_batch, dict) and DISPATCH_KEY in global_batch:
            global_batch = jax.tree.map(constrain, without_padding(global_batch))
        if self._partitioner is not None:
            global_batch = self._partitioner(global_batch)
        return global_batch

    @nowrap
    def element_spec(self) -> PyTree:
        """Returns a tree of `TensorSpec`s of a global batch, from the first batch."""
        batch = next(iter(self.batches(self.dataset())))
        spec = self.partition_for(batch)

        def spec_of(x: np.ndarray | jax.Array) -> TensorSpec:
            is_of_jax = isinstance(
                x, jax.Array
            )  # it may hold keys, which have a dtype of their own
            return TensorSpec(
                shape=(_global_size(x), *x.shape[1:]),
                dtype=x.dtype if is_of_jax else jax.dtypes.canonicalize_dtype(x.dtype),
                mesh_axes=spec,
            )

        return jax.tree.map(spec_of, batch)


class IteratorInput(Input):
    """Input from anything that can be iterated: grain's datasets and loaders, or a generator.

    Attributes of the iterators (`get_state`, `set_state`) are used if they are there, so grain's
    are saved with checkpoints. Each process reads its own part: give grain
    `ShardByJaxProcess`, or slice by `jax.process_index()`.
    """

    @config_class
    class Config(Input.Config):
        """Configures IteratorInput."""

        source: Required[ConfigOr[Callable[[], Iterable[PyTree]]]] = REQUIRED

    @nowrap
    def dataset(self) -> Iterable[PyTree]:
        """Returns the data of the source.

        Raises:
          ValueError: it cannot be called without arguments, or returns nothing to iterate.
        """
        data = _from_source(self.path(), self._config.source)
        if not hasattr(data, "__iter__"):
            raise ValueError(
                f"{self.path()}: source gives a {type(data).__name__}, expected batches that can "
                "be iterated: a generator, a list, a dataset."
            )
        return data


class ArrayInput(Input):
    """Input from arrays in memory, in an order that depends on the seed and nothing else.

    The global batch of a step is the same for any number of processes; each takes its part.
    """

    @config_class
    class Config(Input.Config):
        """Configures ArrayInput."""

        source: Required[ConfigOr[Callable[[], Mapping[str, ArrayLike]]]] = REQUIRED
        global_batch_size: Required[int] = REQUIRED
        seed: int = 0
        shuffle: bool = True
        num_epochs: int | None = None
        is_training: bool = True

    @nowrap
    def dataset(self) -> "ArrayBatches":
        """The batches from the first on.

        Raises:
          ValueError: the source cannot be called without arguments, returns no arrays by name, or
            no batch can be made of them.
        """
        cfg = self._config
        arrays = _from_source(self.path(), cfg.source)
        if not isinstance(arrays, Mapping):
            raise ValueError(
                f"{self.path()}: source gives a {type(arrays).__name__}, expected a dict of arrays."
            )
        try:
            return ArrayBatches(
                arrays,
                global_batch_size=cfg.global_batch_size,
                seed=cfg.seed,
                shuffle=cfg.shuffle,
                num_epochs=cfg.num_epochs,
                drop_remainder=cfg.is_training,
            )
        except ValueError as error:
            raise ValueError(f"{self.path()}: {error}") from error


class ArrayBatches:
    """An iterator over batches of arrays whose state is a number.

    Attributes:
      state_of_all_processes: True, since that number counts global batches.

    Args:
      arrays: name -> array; all have the same first axis.
      global_batch_size: see `ArrayInput`.
      seed: likewise.
      shuffle: likewise.
      num_epochs: likewise.
      drop_remainder: whether examples that fill no batch at an epoch's end are left out; otherwise
        it is a smaller batch, of which the last processes may have nothing.
      process_index: whose part; this process's unless given.
      process_count: of how many; all unless given.

    Raises:
      ValueError: the arrays are of different lengths or shorter than a batch, or the processes
        do not divide the batch.
    """

    state_of_all_processes = True

    def __init__(
        self,
        arrays: Mapping[str, ArrayLike],
        *,
        global_batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        num_epochs: int | None = None,
        drop_remainder: bool = True,
        process_index: int | None = None,
        process_count: int | None = None,
    ):
        if global_batch_size < 1:
            raise ValueError(f"global_batch_size is {global_batch_size}, expected 1 or more")
        # Examples are taken on the host, but for keys, which are of JAX alone.
        self._arrays = {
            name: array if is_keys(array) else np.asarray(array) for name, array in arrays.items()
        }
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"source: expected arrays of the same length, found {lengths}")
        self._examples = next(iter(lengths.values()))
        self._per_epoch = self._examples // global_batch_size
        if not drop_remainder and self._examples % global_batch_size:
            self._per_epoch += 1
        if not self._per_epoch:
            raise ValueError(
                f"global_batch_size {global_batch_size} is more than the {self._examples} examples "
                "of the source: make it smaller"
            )
        count = jax.process_count() if process_count is None else process_count
        if global_batch_size % count:
            raise ValueError(
                f"global_batch_size {global_batch_size} cannot be divided over {count} processes"
            )
        self._index = jax.process_index() if process_index is None else process_index
        self._part = global_batch_size // count
        self._batch_size, self._seed, self._shuffle = global_batch_size, seed, shuffle
        self._steps = None if num_epochs is None else num_epochs * self._per_epoch
        self._position = 0
        self._order: tuple[int, np.ndarray] | None = None

    def __iter__(self) -> "ArrayBatches":
        return self

    def __next__(self) -> dict[str, np.ndarray | jax.Array]:
        if self._steps is not None and self._position >= self._steps:
            raise StopIteration
        epoch, batch = divmod(self._position, self._per_epoch)
        if self._order is None or self._order[0] != epoch:
            indices = np.arange(self._examples)
            if self._shuffle:
                np.random.default_rng((self._seed, epoch)).shuffle(indices)
            self._order = (epoch, indices)
        start = batch * self._batch_size + self._index * self._part
        chosen = self._order[1][start : start + self._part]  # in a last, smaller batch fewer
        self._position += 1
        return {name: array[chosen] for name, array in self._arrays.items()}

    def get_state(self) -> dict[str, int]:
        """Returns the number of batches that were read."""
        return {"position": self._position}

    def set_state(self, state: Mapping[str, int]) -> None:
        """Continues after this many batches.

        Raises:
          ValueError: the state is of another kind.
        """
        position = state.get("position") if isinstance(state, Mapping) else None
        if type(position) is not int or position < 0:
            raise ValueError(f"expected {{'position': number of batches}}, found {state!r}")
        self._position = position


def host_to_global_array(batch: PyTree, *, partition: PartitionSpec) -> PyTree:
    """Global arrays on the current mesh from each process's part of them.

    Args:
      batch: a tree of this process's arrays.
      partition: their partition over the mesh.
    """
    mesh = current_mesh()
    if mesh is None:
        raise ValueError("host_to_global_array needs a mesh: set one with `jax.set_mesh(mesh)`")
    sharding = NamedSharding(mesh, partition)

    def global_array(x: Leaf) -> jax.Array:
        if is_keys(x):  # which JAX does not put together over several processes
            data = global_array(np.asarray(jax.random.key_data(x)))
            return _wrap_key_data(data, impl=jax.random.key_impl(x))
        return jax.make_array_from_process_local_data(sharding, x)

    if mesh.size == 1:  # a tenth of the processor time
        return _placed_by(sharding)(batch)
    if jax.process_count() == 1:
        return jax.device_put(batch, sharding)
    return jax.tree.map(global_array, batch)


@functools.lru_cache
def _placed_by(sharding: NamedSharding) -> Callable[[PyTree], PyTree]:
    return jax.jit(lambda batch: batch, out_shardings=sharding)


def partition_by_path_rank(
    path_rank_to_partition: Mapping[tuple[str | None, int | None], PartitionSpec | object],
) -> Callable[[PyTree], PyTree]:
    """A partitioner of batches by the paths and ranks of their arrays.

    Args:
      path_rank_to_partition: (regular expression for the whole path, or None; rank, or None) ->
        specification; the first that fits each array. `PartitionSpec.UNCONSTRAINED` leaves as is.

    Returns:
      The partitioner, which raises ValueError for an array that nothing fits.
    """

    def partition(batch: PyTree) -> PyTree:
        return jax.tree.map(constrain, tree_paths(batch), batch)

    def constrain(path: str, x: jax.Array) -> jax.Array:
        for (pattern, rank), spec in path_rank_to_partition.items():
            fits_path = pattern is None or re.fullmatch(pattern, path)
            if fits_path and (rank is None or rank == np.ndim(x)):
                if spec is PartitionSpec.UNCONSTRAINED:
                    return x
                return jax.lax.with_sharding_constraint(x, spec)
        raise ValueError(
            f"batch {path!r} of rank {np.ndim(x)}: no partition, there are "
            f"{list(path_rank_to_partition)}. Add one; (None, None) fits everything."
        )

    return partition


def _from_source(where: str, source: ConfigOr[Callable[[], PyTree]]) -> PyTree:
    """Returns the data of a source, of its config, or of a function."""
    data: PyTree = maybe_instantiate(source)
    if not isinstance(data, type) and (hasattr(data, "__iter__") or not callable(data)):
        return data
    try:
        inspect.signature(data).bind()
    except TypeError as error:
        kind = "class" if isinstance(data, type) else "function"
        raise ValueError(
            f"{where}: source is {data!r}, which cannot be called without arguments: {error}. Give "
            f"a config that has them: config_for_{kind}(...).set(...)."
        ) from error
    except ValueError:  # written in C, without a signature
        pass
    return data()


def _ways(mesh: Mesh | AbstractMesh | None, spec: PartitionSpec) -> int:
    """Over how many devices the first axis is divided."""
    entry = spec[0] if len(spec) else None
    axes = entry if isinstance(entry, tuple | list) else (entry,)
    return 1 if mesh is None else math.prod(mesh.shape[axis] for axis in axes if axis is not None)


def _is_numbers_of_numpy(leaf: Leaf) -> bool:
    return type(leaf) is np.ndarray and leaf.dtype.kind not in _NO_NUMBERS


def _array_of(leaf: Leaf) -> np.ndarray | jax.Array:
    if type(leaf) is np.ndarray:
        return leaf
    # With several processes, an array that was made within the mesh's scope lies on all of them.
    is_local = isinstance(leaf, jax.Array) and jax.process_count() == 1
    return leaf if is_local or is_keys(leaf) else np.asarray(leaf)


def _global_size(leaf: Leaf) -> int:
    return len(leaf) * jax.process_count() if np.ndim(leaf) else 1

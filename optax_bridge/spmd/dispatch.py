"""Batches that the devices do not divide: padded on the host, and cut back within the step."""

import math
from collections.abc import Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.config import REQUIRED, Required, config_class
from optax_bridge.spmd.module import Module, nowrap
from optax_bridge.spmd.trees import current_mesh

# In a padded batch, a bool matrix: row i, column j is True if physical example i is logical
# example j. Padding is no logical example.
DISPATCH_KEY = "__physical_to_logical_batch_dispatch"


def padded_batch(batch: dict[str, PyTree], *, size: int, first: int, total: int) -> PyTree:
    """Returns a batch with zeros at its end, and the matrix that tells examples from padding.

    Args:
      batch: this process's part of a batch; all its arrays have the same first axis.
      size: how many examples this process's part is to have.
      first: the number of this process's first example in the logical batch.
      total: examples of the logical batch, over all processes.
    """
    count = batch_size_of(batch)

    def pad(x: Leaf) -> Leaf:
        if is_keys(x):
            data, impl = jax.random.key_data(x), jax.random.key_impl(x)
            return jax.random.wrap_key_data(pad(data), impl=impl) if np.ndim(x) else x
        return np.pad(x, [(0, size - count)] + [(0, 0)] * (np.ndim(x) - 1)) if np.ndim(x) else x

    matrix = np.zeros((size, total), bool)
    matrix[np.arange(count), first + np.arange(count)] = True
    return {**jax.tree.map(pad, batch), DISPATCH_KEY: matrix}


def is_keys(x: object) -> TypeGuard[jax.Array]:
    """True for an array of `jax.random.key`s, which NumPy cannot hold."""
    return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def without_padding(batch: PyTree) -> PyTree:
    """Returns the logical batch of a padded global one, any other unchanged; within `jax.jit`."""
    if not isinstance(batch, dict) or DISPATCH_KEY not in batch:
        return batch
    padded = {key: value for key, value in batch.items() if key != DISPATCH_KEY}
    # A product with the matrix would spread values that are not finite over all examples.
    rows = jnp.argmax(batch[DISPATCH_KEY], axis=0)
    return jax.tree.map(lambda x: jnp.take(x, rows, axis=0) if jnp.ndim(x) else x, padded)


def batch_size_of(batch: PyTree) -> int:
    """Returns the length of the first axis of a batch's arrays.

    Raises:
      ValueError: they differ.
    """
    sizes = {len(x) for x in jax.tree.leaves(batch) if np.ndim(x)}
    if len(sizes) != 1:
        raise ValueError(f"arrays of a batch with the same first axis expected, found {sizes}")
    return sizes.pop()


def padded_to_multiple(batch: dict[str, PyTree], ways: int) -> PyTree:
    """Returns a batch that some devices divide, from one of any length in each process.

    Args:
      batch: this process's part; to be called by all processes.
      ways: over how many devices the global batch is to be divided.
    """
    count, index = jax.process_count(), jax.process_index()
    local_size = batch_size_of(batch)
    sizes = [local_size]
    if count > 1:
        sizes = multihost_utils.process_allgather(np.asarray(local_size)).ravel().tolist()
    multiple = ways // math.gcd(ways, count)
    size = max(1, math.ceil(max(sizes) / multiple)) * multiple
    if set(sizes) == {size}:
        return batch
    return padded_batch(batch, size=size, first=sum(sizes[:index]), total=sum(sizes))


class BaseInputDispatcher(Module):
    """Assigns parts of a batch to processes, and joins the parts to a global batch."""

    @config_class
    class Config(Module.Config):
        """Configures BaseInputDispatcher."""

        global_logical_batch_size: Required[int] = REQUIRED

    @property
    def partition_spec(self) -> PartitionSpec:
        """The layout of the physical batch: along its first axis over all devices."""
        mesh = current_mesh()
        return PartitionSpec(None if mesh is None else tuple(mesh.axis_names))

    @nowrap
    def feed_read_config(self) -> dict[str, int]:
        """Returns {"num_shards", "shard_index"}: this process reads one shard of the data."""
        raise NotImplementedError(type(self).__name__)

    @nowrap
    def logical_to_physical_batch(self, batch: PyTree) -> PyTree:
        """Returns the part of the global batch that this process contributes."""
        return batch

    @nowrap
    def physical_to_logical_batch(self, batch: PyTree) -> PyTree:
        """Returns the global batch that the model gets; within `jax.jit`."""
        return without_padding(batch)


class InputDispatcher(BaseInputDispatcher):
    """Batches of fewer examples than there are processes or devices: some processes only pad."""

    @config_class
    class Config(BaseInputDispatcher.Config):
        """Configures InputDispatcher."""

        global_physical_batch_size: int | None = None
        num_physical_feeds: int | None = None
        physical_feed_index: int | None = None
        logical_feed_indices: Sequence[int] | None = None

    def __init__(self, cfg: Config, *, parent: Module | None):
        """Fills in the fields that are None.

        Raises:
          ValueError: sizes and processes do not fit each other.
        """
        cfg = cfg.clone()
        feeds = jax.process_count() if cfg.num_physical_feeds is None else cfg.num_physical_feeds
        cfg.num_physical_feeds = feeds
        if cfg.physical_feed_index is None:
            cfg.physical_feed_index = jax.process_index()
        if cfg.logical_feed_indices is None:
            cfg.logical_feed_indices = list(range(min(cfg.global_logical_batch_size, feeds)))
        readers = cfg.logical_feed_indices
        if cfg.global_physical_batch_size is None and readers:
            feed_size = math.ceil(cfg.global_logical_batch_size / len(readers))
            cfg.global_physical_batch_size = max(feed_size * feeds, jax.device_count())
        super().__init__(cfg, parent=parent)
        self._check()

    def _check(self) -> None:
        cfg = self._config
        feeds, readers = cfg.num_physical_feeds, cfg.logical_feed_indices
        logical, physical = cfg.global_logical_batch_size, cfg.global_physical_batch_size
        problem = None
        if not 0 <= cfg.physical_feed_index < feeds:
            problem = f"physical_feed_index {cfg.physical_feed_index} is not within [0, {feeds})"
        elif not readers or len(set(readers)) < len(readers):
            problem = f"logical_feed_indices {readers}: expected one or more, each once"
        elif not all(0 <= reader < feeds for reader in readers):
            problem = f"logical_feed_indices {readers} are not all within [0, {feeds})"
        elif logical < 1 or logical % len(readers):
            problem = (
                f"global_logical_batch_size {logical} cannot be divided over {len(readers)} "
                "logical feeds"
            )
        elif physical % feeds:
            problem = f"global_physical_batch_size {physical} cannot be divided over {feeds} feeds"
        elif logical // len(readers) > physical // feeds:
            problem = (
                f"a feed has {logical // len(readers)} examples to read, and room for "
                f"{physical // feeds} (global_physical_batch_size {physical} over {feeds} feeds)"
            )
        if problem is not None:
            raise ValueError(f"{self.path()}: {problem}")

    @property
    def feed_logical_batch_size(self) -> int:
        """Examples that a process reads."""
        return self._config.global_logical_batch_size // self.num_logical_feeds

    @property
    def feed_physical_batch_size(self) -> int:
        """Examples of a process with the padding."""
        return self._config.global_physical_batch_size // self._config.num_physical_feeds

    @property
    def num_logical_feeds(self) -> int:
        """The number of processes that read."""
        return len(self._config.logical_feed_indices)

    @property
    def logical_feed_index(self) -> int | None:
        """The number of this process among those that read; None if it only pads."""
        readers, index = self._config.logical_feed_indices, self._config.physical_feed_index
        return readers.index(index) if index in readers else None

    @nowrap
    def feed_read_config(self) -> dict[str, int]:
        """Returns {"num_shards", "shard_index"}; a process that only pads reads any shard."""
        index = self.logical_feed_index
        if index is None:
            index = self._config.physical_feed_index % self.num_logical_feeds
        return {"num_shards": self.num_logical_feeds, "shard_index": index}

    @nowrap
    def logical_to_physical_batch(self, batch: PyTree) -> PyTree:
        """Returns the batch with its padding; of a process that only pads, padding alone.

        Raises:
          ValueError: it has another number of examples than this process is to read.
        """
        actual, expected = batch_size_of(batch), self.feed_logical_batch_size
        if actual != expected:
            raise ValueError(
                f"{self.path()}: a batch of {expected} examples expected, found {actual}: "
                f"{self._config.global_logical_batch_size} over {self.num_logical_feeds} feeds"
            )
        index, total = self.logical_feed_index, self._config.global_logical_batch_size
        if index is None:
            batch = jax.tree.map(lambda x: x[:0] if np.ndim(x) else x, batch)
        first = 0 if index is None else index * self.feed_logical_batch_size
        return padded_batch(batch, size=self.feed_physical_batch_size, first=first, total=total)


class SpmdInputDispatcher(BaseInputDispatcher):
    """The part of a process is the one that its devices hold; nothing is padded."""

    @config_class
    class Config(BaseInputDispatcher.Config):
        """Configures SpmdInputDispatcher."""

        partition_spec: Required[PartitionSpec] = REQUIRED

    @property
    def partition_spec(self) -> PartitionSpec:
        """The config's."""
        return self._config.partition_spec

    @nowrap
    def feed_read_config(self) -> dict[str, int]:
        """Returns {"num_shards", "shard_index"}; processes that hold the same part read the same.

        Raises:
          ValueError: there is no mesh, or the parts of the processes overlap.
        """
        mesh = current_mesh()
        if not isinstance(mesh, jax.sharding.Mesh):
            raise ValueError(f"{self.path()}: needs a mesh: set one with `jax.set_mesh(mesh)`")
        sharding = NamedSharding(mesh, PartitionSpec(*self.partition_spec[:1]))
        size = self._config.global_logical_batch_size
        rows_by_process: dict[int, set[int]] = {}
        for device, (part,) in sharding.devices_indices_map((size,)).items():
            rows_by_process.setdefault(device.process_index, set()).update(range(size)[part])
        shards = sorted({tuple(sorted(rows)) for rows in rows_by_process.values()})
        if sum(map(len, shards)) != size:
            raise ValueError(
                f"{self.path()}: {self.partition_spec} gives processes parts of a batch of {size} "
                "that overlap. Order the mesh's devices by process."
            )
        own_rows: Leaf = tuple(sorted(rows_by_process[jax.process_index()]))
        return {"num_shards": len(shards), "shard_index": shards.index(own_rows)}

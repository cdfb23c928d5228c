"""Summaries that know how they add up: over minibatches, evaluation batches, repeated layers."""

from typing import Self, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.config import Configurable, InstantiableConfig


class Summary(struct.PyTreeNode):
    """Base class of values with a way to be accumulated.

    A subclass is a pytree and a frozen dataclass by being one: it annotates its fields, no more.
    Writers get those of a training's step with numbers of NumPy for scalars in float32.
    """

    def value(self) -> PyTree:
        """Returns the value that a summary writer writes."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its value is")

    def validate(self) -> None:
        """Raises ValueError for fields of a wrong type or shape."""

    def accumulate(self, other: "Summary") -> "Summary":
        """This summary and a later one of the same name as one."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is accumulated")


class ImageSummary(Summary):
    """A picture, or a batch of them.

    Attributes:
      _value: of shape (height, width, channels) or (batch, height, width, channels), with 1, 3 or 4
        channels.
    """

    _value: Leaf

    def value(self) -> Leaf:
        """The pictures as one array of rank 4."""
        return self._value[None] if jnp.ndim(self._value) == 3 else self._value

    def validate(self) -> None:
        """Raises ValueError for a shape that is not a picture's."""
        shape = jnp.shape(self._value)
        if len(shape) not in (3, 4):
            raise ValueError(
                f"ImageSummary: expected rank 3 or 4, (batch,) height, width, channels, found "
                f"shape {shape}"
            )
        if shape[-1] not in (1, 3, 4):
            raise ValueError(
                f"ImageSummary: expected 1, 3 or 4 channels in the last axis, found shape {shape}"
            )

    def accumulate(self, other: Summary) -> Summary:
        """The first one: pictures do not add up."""
        _check_class(self, other)
        return self


class WeightedSummary(Summary):
    """A mean, and the weight that it was taken with.

    Attributes:
      mean: an array.
      weight: of the same shape, or a scalar, such as the number of examples.
    """

    mean: Leaf
    weight: Leaf

    def value(self) -> Leaf:
        """The mean."""
        return self.mean

    def __add__(self, other: "WeightedSummary") -> "WeightedSummary":
        if not isinstance(other, WeightedSummary):
            return NotImplemented
        weight = self.weight + other.weight
        total = self.mean * self.weight + other.mean * other.weight
        divisor = jnp.where(weight > 0, weight, 1)
        return type(self)(mean=jnp.where(weight > 0, total / divisor, 0), weight=weight)

    def accumulate(self, other: Summary) -> Summary:
        """The mean over both, by their weights; 0 unless their sum is positive."""
        _check_class(self, other)
        assert isinstance(other, WeightedSummary)
        return self + other


class _ElementwiseSummary(Summary):
    """One array, accumulated element by element."""

    _value: Leaf

    def value(self) -> Leaf:
        """The array."""
        return self._value

    def _check_numbers(self, other: Summary) -> Leaf:
        _check_class(self, other)
        assert isinstance(other, _ElementwiseSummary)
        expected, shape = jnp.shape(self._value), jnp.shape(other._value)
        if shape != expected:
            raise ValueError(
                f"{type(self).__name__}: Shape mismatch: expected {expected}, that of the summary "
                f"so far, found {shape}"
            )
        return other._value

    def validate(self) -> None:
        """Raises ValueError for a number that is no array."""
        if not isinstance(self._value, jax.Array | np.ndarray | np.generic):
            raise ValueError(
                f"{type(self).__name__}: expected an array, found {self._value!r}, a "
                f"{type(self._value).__name__}. Pass jnp.asarray(value)."
            )


class MinSummary(_ElementwiseSummary):
    """The smallest of all values."""

    def accumulate(self, other: Summary) -> Self:
        """The smaller one."""
        return type(self)(jnp.minimum(self._value, self._check_numbers(other)))


class MaxSummary(_ElementwiseSummary):
    """The largest of all values."""

    def accumulate(self, other: Summary) -> Self:
        """The larger one."""
        return type(self)(jnp.maximum(self._value, self._check_numbers(other)))


class SumSummary(_ElementwiseSummary):
    """The sum of all values."""

    def accumulate(self, other: Summary) -> Self:
        """The sum."""
        return type(self)(self._value + self._check_numbers(other))


def _check_class(summary: Summary, other: Summary) -> None:
    if type(other) is not type(summary):
        raise TypeError(
            f"expected another {type(summary).__name__} to accumulate, found "
            f"{type(other).__name__}: {other!r}"
        )


def is_summary(node: object) -> TypeGuard[Summary]:
    """True if a node of a tree is a `Summary`."""
    return isinstance(node, Summary)


class MetricAccumulator(Configurable):
    """Accumulates the `Summary`s of trees; a pytree itself, so that a scan may carry it.

    accumulator = MetricAccumulator.default_config().instantiate()
    accumulator.update({"loss": WeightedSummary(2.0, 8), "step": 3})
    accumulator.summaries()  # {"loss": WeightedSummary(2.0, 8), "step": None}
    """

    def __init__(self, cfg: Configurable.Config):
        super().__init__(cfg)
        self._summaries: PyTree = None

    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)
        _register(cls)

    def update(self, model_outputs: PyTree) -> None:
        """Takes in the summaries of one more tree; anything else becomes None."""
        summaries = jax.tree.map(
            lambda leaf: leaf if is_summary(leaf) else None, model_outputs, is_leaf=is_summary
        )
        if self._summaries is None:
            self._summaries = summaries
            return
        self._summaries = jax.tree.map(
            lambda so_far, new: so_far.accumulate(new),
            self._summaries,
            summaries,
            is_leaf=is_summary,
        )

    def summaries(self) -> PyTree:
        """Returns the accumulated summaries, a tree like those of `update`."""
        return self._summaries


class _Config:
    """A config as static data: compared by value, hashed by its class."""

    def __init__(self, cls: type, config: InstantiableConfig):
        self.cls, self.config = cls, config

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Config) and (self.cls, self.config) == (other.cls, other.config)

    def __hash__(self) -> int:
        return hash(self.cls)


def _register(cls: type[MetricAccumulator]) -> None:
    def to_children(node: MetricAccumulator) -> tuple[tuple[PyTree], _Config]:
        return (node._summaries,), _Config(type(node), node._config)

    def from_children(static: _Config, children: tuple[PyTree]) -> MetricAccumulator:
        node = static.config.instantiate()
        (node._summaries,) = children
        return node

    jax.tree_util.register_pytree_node(cls, to_children, from_children)


_register(MetricAccumulator)

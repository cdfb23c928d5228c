"""Layers whose activations are computed again in the backward pass."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import maybe_instantiate
from optax_bridge.spmd.layer.specs import RematSpec
from optax_bridge.spmd.module import (
    Module,
    child_context,
    current_context,
    new_output_collection,
)
from optax_bridge.spmd.trees import check_jax_type

F = TypeVar("F", bound=Callable[..., Any])


def no_remat(fn: F) -> F:
    """Marks a method that is not to be computed again in the backward pass."""
    fn._no_remat = True  # type: ignore[attr-defined]
    return fn


def rematted(method: Callable[..., Any], spec: RematSpec) -> Callable[..., Any]:
    """The method, under `jax.checkpoint` while training.

    Args:
      method: a method of a layer, not bound.
      spec: how.
    """
    options = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    options["policy"] = maybe_instantiate(options["policy"])

    @functools.wraps(method)
    def call(self: Module, *args: Any, **kwargs: Any) -> Any:
        context = current_context()
        if context is None or context.module is not self or not context.is_training:
            return method(self, *args, **kwargs)
        check_jax_type(
            args=args,
            msg=f"{self!r} has a remat_spec, under which {method.__name__} takes arrays only; pass "
            "others by keyword, or mark the method by `@no_remat`.",
        )
        traced = {name: value for name, value in kwargs.items() if _is_traced(value)}
        others = {name: value for name, value in kwargs.items() if name not in traced}

        def inside(state: PyTree, prng_key: jax.Array, args: Any, traced: Any) -> Any:
            # The key is that of the context outside: remat leaves random numbers as they are.
            with child_context(
                "remat",
                module=self,
                state=state,
                prng_key=prng_key,
                output_collection=new_output_collection(),
            ) as remat:
                outputs = method(self, *args, **traced, **others)
                return outputs, remat.output_collection

        outputs, collection = jax.checkpoint(inside, **options)(  # pyright: ignore
            context.state, context.prng_key, args, traced
        )
        context.output_collection.update(collection)
        return outputs

    return call


def _is_traced(value: Any) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)

"""Layers whose activations are computed again in the backward pass."""

import functools
from typing import TypeVar

import jax

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.config import maybe_instantiate
from optax_bridge.spmd.layer.specs import RematSpec
from optax_bridge.spmd.module import (
    Module,
    OutputCollection,
    child_context,
    current_context,
    new_output_collection,
)
from optax_bridge.spmd.module.wrapping import Method
from optax_bridge.spmd.trees import check_jax_type

F = TypeVar("F", bound=Method)


def no_remat(fn: F) -> F:
    """Marks a method that is not to be computed again in the backward pass."""
    fn._no_remat = True  # type: ignore[attr-defined]
    return fn


def remat_method(method: Method, spec: RematSpec) -> Method:
    """The method, under `jax.checkpoint` while training.

    Args:
      method: a method of a layer, not bound.
      spec: how.
    """
    checkpointed: Method = functools.partial(
        jax.checkpoint, prevent_cse=spec.prevent_cse, policy=maybe_instantiate(spec.policy)
    )

    @functools.wraps(method)
    def call(self: Module, *args: PyTree, **kwargs: PyTree) -> PyTree:
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

        def inside(
            state: PyTree, prng_key: jax.Array | None, args: PyTree, traced: PyTree
        ) -> tuple[PyTree, OutputCollection]:
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

        outputs, collection = checkpointed(inside)(context.state, context.prng_key, args, traced)
        context.output_collection.update(collection)
        return outputs

    return call


def _is_traced(value: PyTree) -> bool:
    leaves = jax.tree.leaves(value)
    return bool(leaves) and all(isinstance(leaf, jax.Array) for leaf in leaves)

"""A module's method as a pure function, and a scan over a function that calls modules."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax

from optax_bridge.metadata.trees import Leaf, PyTree
from optax_bridge.spmd.metrics import is_summary
from optax_bridge.spmd.module.context import (
    InvocationContext,
    OutputCollection,
    OutputConflictError,
    child_context,
    current_context,
    new_output_collection,
    own_stack,
    set_current_context,
)
from optax_bridge.spmd.module.module import Module
from optax_bridge.spmd.trees import prune_tree, raise_for_cycles


def functional(
    module: Module,
    prng_key: jax.Array | None,
    state: PyTree,
    inputs: Mapping[str, PyTree] | Sequence[PyTree],
    *,
    method: str = "forward",
    is_training: bool,
    drop_output_collections: Sequence[str] = ("module_outputs",),
    copy_args_tree: bool = True,
) -> tuple[PyTree, OutputCollection]:
    """Calls a method of a module in a root context.

    The call has no side effects, so that `jax.jit`, `jax.grad` and the like can be applied to it.

    Args:
      module: the module.
      prng_key: the random key; None if nothing is random.
      state: the state of the module and those below it: the parameters of layers.
      inputs: the method's arguments, by name or in order.
      method: its name; a private one will do.
      is_training: True in training.
      drop_output_collections: which outputs are not wanted.
      copy_args_tree: True to copy state and inputs, though not their arrays, so that what the
        method does to a dict does not reach the caller's.

    Returns:
      The outputs of the method, and the collection that it filled.

    Raises:
      ValueError: a container in state or inputs contains itself.
      TypeError: inputs is neither a dict nor a sequence.
    """
    if not isinstance(inputs, Mapping | Sequence) or isinstance(inputs, str):
        raise TypeError(
            f"inputs of {module!r}.{method}: expected a dict of arguments by name or a tuple of "
            f"arguments in order, got a {type(inputs).__name__}. One argument x is `(x,)`."
        )
    if copy_args_tree:
        raise_for_cycles(state)
        raise_for_cycles(inputs)
        state, inputs = jax.tree.map(lambda x: x, (state, inputs))
    context = InvocationContext(
        name="root",
        parent=None,
        module=module,
        state=state,
        is_training=is_training,
        prng_key=prng_key,
        output_collection=new_output_collection(),
    )
    args, kwargs = ((), inputs) if isinstance(inputs, Mapping) else (inputs, {})
    # A thread without contexts must not work in the main thread's.
    with own_stack(), set_current_context(context, require_parent=False):
        outputs = getattr(module, method)(*args, **kwargs)
    dropped = {name: {} for name in drop_output_collections}
    return outputs, context.output_collection._replace(**dropped)


def scan_in_context(
    fn: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    *,
    carry: PyTree,
    xs: dict[str, PyTree],
    drop_output: Callable[[str], bool] | None = None,
    child_name_prefix: str = "iter",
    unroll: int = 1,
    remat_kwargs: dict[str, object] | None = None,
    merge_summaries: bool = False,
) -> tuple[PyTree, PyTree]:
    """Scans a function, each iteration in a context of its own below the current one.

    Args:
      fn: `fn(carry, x)` returns the next carry and y.
      carry: the first carry.
      xs: under "xs" the values that are scanned into x; under the name of a field of
        `InvocationContext`, "state" or "prng_key" say, those that are scanned into that field.
        Without these all iterations have those of a child context "iter".
      drop_output: True to drop the outputs at a path such as "module_outputs/layer/scores".
      child_name_prefix: where outputs are left: module outputs and state updates stacked along axis
        0 under this name, summaries of iteration i under the name with i appended.
      unroll: as in `jax.lax.scan`.
      remat_kwargs: arguments of `jax.checkpoint`, which then wraps the body.
      merge_summaries: leave one summary under the prefix, accumulated over the iterations, instead.

    Returns:
      The last carry, and the ys stacked.

    Raises:
      ValueError: there is no current context, or prevent_cse is to be on, which a scan needs not.
      OutputConflictError: there are outputs of that name.
    """
    context = current_context()
    if context is None:
        raise ValueError("Expected current_context() to be set: scan_in_context runs in a module.")
    _check_not_taken(context, child_name_prefix)
    overrides = {name: value for name, value in xs.items() if name != "xs"}

    def body(carry: PyTree, scanned: tuple[PyTree, dict[str, PyTree]]) -> tuple[PyTree, PyTree]:
        x, overridden = scanned
        collection = new_output_collection()
        with child_context(
            "iter",
            **({"module": context.module, "output_collection": collection} | overridden),
        ) as iteration:
            carry, y = fn(carry, x)
            collection = iteration.output_collection
        return carry, (y, _without(collection, drop_output))

    carry, (ys, stacked) = jax.lax.scan(
        _remat(body, remat_kwargs), carry, (xs.get("xs"), overrides), unroll=unroll
    )
    leaves = jax.tree.leaves((xs, stacked.summaries))
    iterations = [
        jax.tree.map(lambda x, i=i: x[i], stacked.summaries)
        for i in range(leaves[0].shape[0] if leaves else 0)
    ]
    _leave_outputs(
        context.output_collection, child_name_prefix, stacked, iterations, merge_summaries
    )
    return carry, ys


def _remat(
    body: Callable[..., tuple[PyTree, PyTree]], kwargs: dict[str, PyTree] | None
) -> Callable[..., tuple[PyTree, PyTree]]:
    if kwargs is None:
        return body
    if kwargs.get("prevent_cse"):
        raise ValueError("prevent_cse must be False inside a scan, which needs none.")
    arguments: dict[str, PyTree] = {**kwargs, "prevent_cse": False}
    return jax.checkpoint(body, **arguments)


def _leave_outputs(
    outputs: OutputCollection,
    prefix: str,
    stacked: OutputCollection,
    iterations: Sequence[PyTree],
    merge_summaries: bool,
) -> None:
    outputs.module_outputs[prefix] = stacked.module_outputs
    outputs.state_updates[prefix] = stacked.state_updates
    if merge_summaries:
        outputs.summaries[prefix] = _accumulate(iterations)
    else:
        outputs.summaries.update(
            {f"{prefix}{i}": summaries for i, summaries in enumerate(iterations)}
        )


def _check_not_taken(context: InvocationContext, prefix: str) -> None:
    outputs = context.output_collection
    taken = {prefix, f"{prefix}0"} & set(outputs.summaries)
    taken |= {prefix} & (set(outputs.module_outputs) | set(outputs.state_updates))
    if taken:
        raise OutputConflictError(
            f"{min(taken)} already present in the outputs of {context.path()}: a second scan there "
            "needs another child_name_prefix."
        )


def _without(
    collection: OutputCollection, drop_output: Callable[[str], bool] | None
) -> OutputCollection:
    if drop_output is None:
        return collection
    remaining = prune_tree(collection._asdict(), lambda path, _: drop_output(path))
    return OutputCollection(**{name: remaining.get(name, {}) for name in collection._fields})


def _accumulate(iterations: Sequence[PyTree]) -> PyTree:
    """The summaries of all iterations as one."""

    def add(a: Leaf, b: Leaf) -> Leaf:
        return a.accumulate(b) if is_summary(a) else a + b

    merge = functools.partial(jax.tree.map, add, is_leaf=is_summary)
    return functools.reduce(merge, iterations) if iterations else {}

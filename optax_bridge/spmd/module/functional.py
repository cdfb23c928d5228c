"""`functional`: a module's method as a pure function of state, key and inputs."""

from collections.abc import Mapping, Sequence

import jax

from optax_bridge.metadata.trees import PyTree
from optax_bridge.spmd.module.context import InvocationContext, set_current_context
from optax_bridge.spmd.module.module import Module
from optax_bridge.spmd.module.outputs import OutputCollection, new_output_collection
from optax_bridge.spmd.module.stack import own_stack
from optax_bridge.spmd.trees import raise_for_cycles


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
      is_training: whether the call is for training.
      drop_output_collections: which outputs are not wanted.
      copy_args_tree: whether state and inputs are copied, though not their arrays, so that what the
        method does to a dict does not reach the caller's.

    Returns:
      What the method returned, and what was left on the way.

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

# pyright: strict
"""Errors for names of `flax.optim.Optimizer` that a TrainState lacks: each names its successor."""

OLD_ATTRIBUTES = {
    "target": "the parameters are state.params",
    "state": (
        "state.state.step is now state.step, and state.state.param_states is state.opt_state, "
        "where optax.tree.get(state.opt_state, name) returns the moments; `optax-bridge recipe` "
        "lists their names. The state of a definition of your own is state.opt_state itself"
    ),
    "optimizer_def": "the transformation is state.tx",
    "hyper_params": "those of this project's transformations are state.tx.hyper_params",
    "apply_gradient": (
        "write state.apply_gradients(grads=gradients), with hyper-parameters of this step as "
        "further keyword arguments, such as learning_rate=1e-3"
    ),
    "compute_gradient": (
        "write value, grads = jax.value_and_grad(loss_fn)(state.params), with has_aux=True "
        "if loss_fn returns more than the loss"
    ),
    "optimize": (
        "write value, grads = jax.value_and_grad(loss_fn)(state.params), then "
        "state.apply_gradients(grads=grads)"
    ),
    "replicate": (
        "write flax.jax_utils.replicate(state), and average the gradients in the step with "
        "jax.lax.pmean, as replicate() did by itself"
    ),
    "unreplicate": "write flax.jax_utils.unreplicate(state)",
    "state_dict": "write flax.serialization.to_state_dict(state)",
    "restore_state": (
        "write optax_bridge.checkpoints.from_state_dict(state, saved), which also takes the state "
        "dicts of flax.optim"
    ),
    "param_states": "the optimizer's state is state.opt_state",
}
OLD_ATTRIBUTES["compute_gradients"] = OLD_ATTRIBUTES["compute_gradient"]


def missing_attribute(owner: object, name: str) -> AttributeError:
    """Returns the error for one of `OLD_ATTRIBUTES`, which names its successor."""
    return AttributeError(
        f"{type(owner).__name__!r} object has no attribute {name!r}, which an Optimizer of "
        f"flax.optim had: {OLD_ATTRIBUTES[name]}",
        name=name,
        obj=owner,
    )


def misplaced_gradients(method: str, by_position: bool, kwargs: dict[str, object]) -> TypeError:
    """Returns the error for a step whose gradients are not passed as `grads=`."""
    argument = next((name for name in kwargs if name.startswith("grad") or name == "updates"), "")
    given_by = f"{argument}=" if argument else "them by position" if by_position else "none"
    return TypeError(
        f"{method} takes the gradients by keyword, state.{method.rpartition('.')[2]}(grads=...), "
        f"found {given_by}"
    )

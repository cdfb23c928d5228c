# pyright: strict
"""Names of Optax, PyTorch and Flax's TrainState that flax.optim lacks, and what it has instead.

`optax_bridge/training/old_names.py` is the same the other way around.
"""

# Attributes of a TrainState.
ATTRIBUTES = {
    "params": "the parameters are optimizer.target",
    "step": "the number of steps is optimizer.state.step",
    "opt_state": "the optimizer's state is optimizer.state.param_states",
    "tx": "the definition is optimizer.optimizer_def",
    "apply_fn": "an Optimizer holds no model: call model.apply({'params': optimizer.target}, ...)",
    "apply_gradients": (
        "write optimizer.apply_gradient(grads), with hyper-parameters of this step as keyword "
        "arguments, such as learning_rate=1e-3"
    ),
    "learning_rate": "it is optimizer.optimizer_def.hyper_params.learning_rate",
    "hyper_params": "they are optimizer.optimizer_def.hyper_params",
}

# Optimizers, lower-case.
_CLASSES = {
    "adamw": "Adam(learning_rate, weight_decay=...), whose decay is decoupled",
    "sgd": "GradientDescent(learning_rate), or Momentum(learning_rate, beta=..., nesterov=...)",
    "trainstate": "Adam(1e-3).create(params), for example: an Optimizer is its TrainState",
}


def missing_class(name: str) -> str:
    """Returns flax.optim's equivalent of a class that it lacks, as the end of an error."""
    import legacy_optim

    names = {public.lower(): public for public in legacy_optim.__all__}
    equivalent = _CLASSES.get(name.lower()) or names.get(name.lower())
    return f", which flax.optim never had: use {equivalent}" if equivalent else ""

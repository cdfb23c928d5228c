"""Momentum that clips its gradients and may keep its state in another dtype."""
import flax
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class HyperParams:
    learning_rate: float
    beta: float
    grad_norm_clip: float


@flax.struct.dataclass
class State:
    momentum: jnp.ndarray


class Optimizer(flax.optim.OptimizerDef):
    """Momentum optimizer that also supports gradient clipping."""

    def __init__(self, learning_rate=None, beta=0.9, dtype='bfloat16', grad_norm_clip=None):
        hyper_params = HyperParams(learning_rate, beta, grad_norm_clip)
        super().__init__(hyper_params)
        self.dtype = dtype

    def init_param_state(self, param):
        return State(jnp.zeros_like(param, dtype=self.dtype))

    def apply_gradient(self, hyper_params, params, state, grads):
        step = state.step
        params_flat, treedef = jax.tree_flatten(params)
        states_flat = treedef.flatten_up_to(state.param_states)
        grads_flat = treedef.flatten_up_to(grads)
        if hyper_params.grad_norm_clip:
            grads_l2 = jnp.sqrt(sum([jnp.vdot(p, p) for p in grads_flat]))
            grads_factor = jnp.minimum(1.0, hyper_params.grad_norm_clip / grads_l2)
            grads_flat = [g * grads_factor for g in grads_flat]
        out = [self.apply_param_gradient(step, hyper_params, param, s, grad)
               for param, s, grad in zip(params_flat, states_flat, grads_flat)]
        new_params_flat, new_states_flat = list(zip(*out)) if out else ((), ())
        new_params = jax.tree_unflatten(treedef, new_params_flat)
        new_param_states = jax.tree_unflatten(treedef, new_states_flat)
        return new_params, flax.optim.OptimizerState(step + 1, new_param_states)

    def apply_param_gradient(self, step, hyper_params, param, state, grad):
        del step
        new_momentum = hyper_params.beta * state.momentum + grad
        new_param = param - hyper_params.learning_rate * new_momentum
        return new_param, State(new_momentum.astype(self.dtype))

"""Every optimizer of a single table: constructor, errors and compilation.

What they compute and keep, the recordings of the genuine `flax.optim` say:
`equivalence_tests/reference`.
"""

import inspect

import pytest

import legacy_optim as optim

LR = 0.05
BETAS = "beta1=0.9, beta2=0.999"
# What follows the learning rate, None.
TABLE = {
    "GradientDescent": "",
    "Momentum": "beta=0.9, weight_decay=0, nesterov=False",
    "Adam": f"{BETAS}, eps=1e-08, weight_decay=0.0",
    "AdaBelief": f"{BETAS}, eps=1e-16, weight_decay=0.0",
    "Adadelta": "rho=0.9, eps=1e-06, weight_decay=0.0",
    "Adafactor": "factored=True, multiply_by_parameter_scale=True, beta1=None, decay_rate=0.8, "
    "step_offset=0, clipping_threshold=1.0, weight_decay_rate=None, min_dim_size_to_factor=128, "
    "epsilon1=1e-30, epsilon2=0.001, dtype_momentum=float32",
    "Adagrad": "eps=1e-08",
    "LAMB": f"{BETAS}, weight_decay=0, eps=1e-06",
    "LARS": "beta=0.9, weight_decay=0, trust_coefficient=0.001, eps=0, nesterov=False",
    "RMSProp": "beta2=0.9, eps=1e-08, centered=False",
}
each = pytest.mark.parametrize("name", TABLE)


@each
def test_arguments_and_hyper_parameters_have_their_order_and_defaults(name: str) -> None:
    parameters = inspect.signature(getattr(optim, name)).parameters.values()
    defaults = {p.name: getattr(p.default, "__name__", repr(p.default)) for p in parameters}
    shown = [f"{argument}={default}" for argument, default in defaults.items()]
    assert shown == ["learning_rate=None", *filter(None, TABLE[name].split(", "))]
    for key, value in vars(getattr(optim, name)().hyper_params).items():
        assert repr(value) == defaults[key]

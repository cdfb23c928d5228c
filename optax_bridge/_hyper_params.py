# pyright: strict
"""The names of hyper-parameters: in flax.optim, Optax, PyTorch and Keras, and by habit."""

from collections.abc import Container

RATES = ("learning_rate", "lr", "step_size", "rate")
WEIGHT_DECAYS = ("weight_decay", "weight_decay_rate", "wd", "wn_decay")

# The names of one thing. `betas[0]` is the first of several numbers.
ALIKE = (
    RATES,
    ("b1", "beta1", "beta_1", "betas[0]"),
    ("b2", "beta2", "beta_2", "betas[1]"),
    ("decay", "alpha", "rho", "beta2", "gamma"),
    ("momentum", "beta", "mass"),
    ("eps", "epsilon", "epsilon1", "wn_eps"),
    WEIGHT_DECAYS,
    ("nesterov",),
    ("centered",),
    ("amsgrad",),
    ("initial_scale", "initial_accumulator_value"),
    ("wrapped_optimizer", "inner"),
)

# Further meanings of a name, in order: only a message may guess so.
_PERHAPS = {
    "alpha": ("learning_rate",),
    "beta": ("momentum", "decay"),
    "beta1": ("b1", "momentum"),
    "beta2": ("b2", "decay", "rho"),
    "decay": ("beta", "decay_rate", "weight_decay"),
    "momentum": ("decay", "b1"),
}


def other_name(name: str, names: Container[str]) -> str:
    """The first of an optimizer's names with the meaning of another library's, or ""."""
    groups = [[synonym.partition("[")[0] for synonym in group] for group in ALIKE]
    synonyms = (synonym for group in groups if name in group for synonym in group)
    return next((n for n in (*_PERHAPS.get(name, ()), *synonyms) if n in names), "")

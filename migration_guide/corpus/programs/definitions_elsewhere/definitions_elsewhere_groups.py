"""The definitions that this program uses."""
from flax import optim


def get_optimizer_def(weight_decay=0.0):
    return optim.Adam(beta1=0.8, weight_decay=weight_decay)

"""A named side in the correspondence: its recipe, and why not the obvious one."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from equivalence_tests.pair.named import NamedSide
from optax_bridge.correspondence import TORCH, choose_recipe
from optax_bridge.correspondence.expression import ExpressionError, parse
from optax_bridge.correspondence.recipe import render
from optax_bridge.metadata.trees import Params

_MODULES = ("legacy_optim", TORCH.origin)


def known_recipe(sides: Sequence[NamedSide], params: Params) -> str:
    """Returns what a legacy side, or one of PyTorch, is in Optax; empty where none is."""
    dtypes = {jnp.result_type(leaf).name for leaf in jax.tree.leaves(params)}
    for side in sides:
        module = side.name.partition(":")[0]
        if module not in _MODULES:
            continue
        call = side.call({}).removeprefix("legacy_optim.")
        try:
            choice = choose_recipe(parse(side.text or call), "auto", dtypes)
        except ExpressionError:  # an argument that is no literal, say
            continue
        what = f"{side} in Optax is {render(choice.call)}: {choice.claim.verdict.value}"
        return f"{what}. {choice.reason}" if choice.reason else what
    return ""

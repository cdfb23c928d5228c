"""Which files use names that are gone: every spelling of an import, and nothing else."""

import pytest

from legacy_optim.gone.usage import uses_gone_names

SPELLINGS = {
    "from-flax-import-nn": ("from flax import nn", "flax.nn"),
    "import-below": ("import flax.nn.activation as a", "flax.nn.activation"),
    "import-below-by-its-top": ("import jax.numpy\njax.numpy.product(x)", "jax.numpy.product"),
    "attribute": ("import flax\nflax.nn.Dense", "flax.nn.Dense"),
    "name": ("from jax import partial", "jax.partial"),
    "other-name": ("import jax.api as japi\njapi.jit(f)", "jax.api.jit"),
    "module-and-object": ("import jax.config", "the module jax.config"),
    "object": ("import jax\njax.config.enable_omnistaging()", "jax.config.enable_omnistaging"),
    "from-the-module": ("from jax.config import config", "jax.config.config"),
    "numpy": ("import numpy as np\nx = np.zeros(2, np.int)", "numpy.int"),
    "in-a-function": ("def f():\n    from numpy import float", "numpy.float"),
    "keyword": ("import jax.numpy as jnp\njnp.clip(x, a_max=1)", "jax.numpy.clip(a_max=)"),
    "star": ("from jax.experimental.loops import *", "jax.experimental.loops"),
    "name-of-star": ("from jax.numpy import *\nproduct(x)", "jax.numpy.product"),
    "variable": ("import jax\nxnp = jax.numpy\nxnp.product(x)", "jax.numpy.product"),
}


def test_found_in_every_spelling(subtests: pytest.Subtests):
    for source, name in SPELLINGS.values():
        with subtests.test(source):
            found = uses_gone_names(source)
            assert name in [entry.name for _, entry in found]


@pytest.mark.parametrize(
    "source",
    [
        "import jax\njax.config.update('jax_enable_x64', True)",
        "from flax import optim\noptim.Adam(0.1)",
        "import numpy as np\nnp.float32(1)\njnp = np\njnp.clip(x, a_max=1)",
        "partial = jax = None\njax.partial",
        "def f(:",
        "nn.Dense  # flax",
        "from numpy import *\nfloat(x)",
        "from .jax import partial\npartial(f)",
    ],
    ids=["object", "optim", "numpy", "own", "broken", "comment", "builtin", "relative"],
)
def test_what_is_there_or_not_known_is_not_found(source: str):
    assert uses_gone_names(source) == []

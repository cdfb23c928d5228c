"""Which files use names that are gone: every spelling of an import, and nothing else."""

import pytest

from legacy_optim.gone.usage import uses_gone_names

SPELLINGS = {
    "from flax import nn": "flax.nn",
    "import flax.nn.activation as a": "flax.nn.activation",
    "import jax.numpy\njax.numpy.product(x)": "jax.numpy.product",
    "import flax\nflax.nn.Dense": "flax.nn.Dense",
    "from jax import partial": "jax.partial",
    "import jax.api as japi\njapi.jit(f)": "jax.api.jit",
    "import jax.config": "the module jax.config",
    "import jax\njax.config.enable_omnistaging()": "jax.config.enable_omnistaging",
    "from jax.config import config": "jax.config.config",
    "import numpy as np\nx = np.zeros(2, np.int)": "numpy.int",
    "def f():\n    from numpy import float": "numpy.float",
    "import jax.numpy as jnp\njnp.clip(x, a_max=1)": "jax.numpy.clip(a_max=)",
    "from jax.experimental.loops import *": "jax.experimental.loops",
    "from jax.numpy import *\nproduct(x)": "jax.numpy.product",
    "import jax\nxnp = jax.numpy\nxnp.product(x)": "jax.numpy.product",
}


@pytest.mark.parametrize(("source", "name"), SPELLINGS.items())
def test_found_in_every_spelling(source: str, name: str):
    assert name in [entry.name for _, entry in uses_gone_names(source)]


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
)
def test_what_is_there_or_not_known_is_not_found(source: str):
    assert uses_gone_names(source) == []

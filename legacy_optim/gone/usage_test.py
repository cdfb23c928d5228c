"""Which files use names that are gone: every spelling of an import, and nothing else."""

import pytest

from legacy_optim.gone.usage import uses_gone_names


@pytest.mark.parametrize(
    "source",
    [
        "from flax import nn",
        "import flax.nn.activation as a",
        "import jax.numpy\njax.numpy.product(x)",
        "from jax import partial",
        "import jax.config",
        "import jax\njax.config.enable_omnistaging()",
        "from jax.config import config",
        "import numpy as np\nx = np.zeros(2, np.int)",
        "def f():\n    from numpy import float",
        "import jax.numpy as jnp\njnp.clip(x, a_max=1)",
        "from jax.numpy import clip as cut\ncut(x, a_max=1)",
        "from jax.experimental.loops import *",
        "from jax.config import *",
        "from jax.numpy import *\nfrom os.path import *\nproduct(x)",
        "import jax\nxnp = jax.numpy\nxnp.product(x)",
        "from optax import additive_weight_decay",
        "import chex as c\nc.assert_tree_all_close(x, y)",
        "import orbax.checkpoint.checkpointer",
    ],
)
def test_found_in_every_spelling(source: str):
    assert uses_gone_names(source)


@pytest.mark.parametrize(
    "source",
    [
        "import jax\njax.config.update('jax_enable_x64', True)",
        "from jax import config",
        "from flax import optim\noptim.Adam(0.1)",
        "import numpy as np\nnp.float32(1)\njnp = np\njnp.clip(x, a_max=1)",
        "partial = jax = None\njax.partial",
        "def f(:",
        "jax = " + "-" * 100_000 + "1",
        "from numpy import *\nfloat(x)",
        "from .jax import partial\npartial(f)",
    ],
    ids=lambda source: source[:40],
)
def test_what_is_there_or_not_known_is_not_found(source: str):
    assert not uses_gone_names(source)

"""Where half precision is in sight, or a dtype is not, the legacy arithmetic is written."""

from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.inference.parameter_dtypes import signs
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite

HEAD = (
    "import jax\nimport jax.numpy as jnp\nimport numpy as np\nfrom flax import linen as nn, optim\n"
)
FLAX = "class M(nn.Module):\n    def __call__(self, x): return {}(x)\nd.create(M().init(k, x))"
PERHAPS = {
    "name": "x = jnp.bfloat16",
    "text": "x = jnp.zeros(3, 'float16')",
    "numpy-s-name": "x = np.half",
    "flag": "x = train(half_precision=True)",
    "default": "class M(nn.Module):\n    dtype: str = 'bf16'",
    "jmp": "import jmp",
    "dynamic-scale": "optim.DynamicScale()",
    "from-a-config": "nn.Dense(3, dtype=dtype)\ndtype = cfg.dtype",
    "from-a-flag": "p = jax.tree_map(lambda x: x.astype(FLAGS.dtype), p)",
    "by-key": "jnp.zeros(3, config['dtype'])",
    "got": "jnp.zeros(3, config.get('param_dtype', 'float32'))",
    "from-a-table": "nn.Dense(3, param_dtype=TABLE[name])",
    "letter": "x.astype('e')",
    "looked-up": "x.astype(getattr(jnp, name))",
    "made-of-text": "jnp.dtype(name)",
    "by-keyword": "def f(dtype): return x.astype(dtype)\nf(dtype=g(1))",
    "by-position": "def f(t, dtype): return t.astype(dtype)\nf(p, kinds[0])",
    "by-a-field": (
        "class P:\n    def __init__(self, param_dtype): self.d = param_dtype\n"
        "    def cast(self, t): return t.astype(self.d)\nP(spec.kind)"
    ),
    "unseen-parameters": "import models\noptim.Adam(1).create(models.make())",
    "unseen-model": "import models\nm = models.Net()\np = m.init(k, x)['params']\nd.create(p)",
    "unseen-by-functions": (
        "from models import Net\ndef make(): return jax.jit(Net().init)(k, x)['params']\n"
        "def train(p): return optim.Adam(1).create(p)\ntrain(make())"
    ),
    "unseen-submodule": "import nets\n" + FLAX.format("nets.Backbone()"),
    "unseen-base": "import nets\nclass M(nets.Base): pass\nd.create(M().init(k, x))",
    "relative": "from .nets import M\nd.create(M().init(k)['params'])",
    "read-from-a-file": "p = np.load(file)\nd.create(p)",
}
FLOAT32 = {
    "module-s-default": (
        "class M(nn.Module):\n    dtype: Any = jnp.float32\n"
        "    def __call__(self, x): return nn.Dense(3, dtype=self.dtype)(x)\n"
        "d.create(M().init(k, x))"
    ),
    "an-array-s": "x.astype(y.dtype)",
    "integers": "jnp.zeros(3, dtype=jnp.int32)",
    "half-of-a-number": "half = n // 2",
    "unknown-parameters": "def f(params): return d.create(params)",
    "letters": "p = x.astype('f'), y.astype('>f4'), z.astype('i')",
    "initializer": "def init(key, shape, dtype=jnp.float32): return jnp.zeros(shape, dtype)",
    "by-position": "def f(t, dtype): return t.astype(dtype)\nf(p, jnp.float32)",
    "literal": "getattr(jnp, 'float32'), jnp.dtype('float32')",
    "another-getattr": "getattr(optim, name)",
    "either": "jnp.asarray(x, dtype=jnp.float32 if a else None)",
    "unseen-data": "import data\nx = data.load()\nd.create({'a': jnp.ones(3)})",
    "submodules": FLAX.format("nn.Dense(3)"),
    "another-create": "User.objects.create(name=1)",
}


def test_half_precision_or_what_may_hide_it_is_seen(subtests: pytest.Subtests):
    for code in PERHAPS.values():
        with subtests.test(code):
            (sign,) = signs({Path("train.py"): HEAD + code}, {"train"})
            assert sign.path == "train.py"
            assert (HEAD + code).splitlines()[sign.line - 1]


def test_what_is_written_out_or_left_to_flax_is_float32(subtests: pytest.Subtests):
    for code in FLOAT32.values():
        with subtests.test(code):
            assert signs({Path("train.py"): HEAD + code}, {"train"}) == ()


TRAIN = "from flax import optim\nimport model\no = optim.Adam(0.1).create(model.make())\n"
MODEL = "from flax import linen as nn\ndef make(): return nn.Dense(3).init(k, x)['params']\n"


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("model.py", MODEL.replace("(3)", "(3, param_dtype='bfloat16')"), "model.py:2: "),
        ("config.py", "def get(c):\n    c.half_precision = True\n", "config.py:2: "),
        ("data.py", "import torch\nx = torch.float16\n", ""),
        ("model.py", MODEL, ""),
        ("model_.py", MODEL, "train.py:3: model.make()"),
    ],
    ids=["model", "config", "another-library", "in-sight", "not-given"],
)
def test_all_files_of_the_program_count(tmp_path: Path, name: str, text: str, expected: str):
    (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
    (tmp_path / name).write_text(text, encoding="utf-8")
    if name == "model_.py":
        (tmp_path / "model.py").unlink()
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    results = {r.path.name: r for r in driver.migrate([tmp_path], Options()).results}
    messages = [message.text for message in results["train.py"].messages]
    if not expected:
        assert ("optax.adam(" in results["train.py"].code, messages) == (True, [])
    else:
        assert "optax_bridge.adam(" in results["train.py"].code
        (text,) = messages
        assert f"parameters may be in half precision ({tmp_path}/{expected}" in text
        assert "the legacy bias correction" in text


def test_what_holds_in_half_precision_stays_public_optax():
    code = (
        "import jax.numpy as jnp\nfrom flax import optim\nd = optim.Momentum(0.1), jnp.bfloat16\n"
    )
    result = rewrite(code, Options())
    assert "d = optax.sgd(" in result.code
    assert not result.messages
    code += "e = optim.WeightNorm(optim.GradientDescent(0.1))\n"
    assert "d = optax_bridge.momentum(" in rewrite(code, Options()).code


def test_public_optax_alone_leaves_it_to_a_person():
    code = f"{HEAD}d = optim.Adam(0.1), jnp.bfloat16\n"
    result = rewrite(code, Options(recipe="optax"))
    assert "d = optax.adam(" in result.code
    (message,) = result.messages
    assert message.by_hand and "optax_bridge.adam" in message.text
    assert rewrite(result.code, Options(recipe="optax")).code == result.code


PROGRAM = """
import jax
import jax.numpy as jnp
from flax import optim

params = {"w": jnp.linspace(-1, 1, 6).astype(DTYPE)}
optimizer = optim.Adam(0.1).create(params)
losses = []
for i in range(5):
    loss, grad = jax.value_and_grad(lambda p: jnp.sum((p["w"] - i) ** 2))(optimizer.target)
    optimizer = optimizer.apply_gradient(grad)
    losses.append(float(loss))
"""


def test_a_program_in_half_precision_computes_what_it_did(subtests: pytest.Subtests):
    for dtype in ["jnp.bfloat16", "jnp.float16"]:
        with subtests.test(dtype):
            code = PROGRAM.replace("DTYPE", dtype)
            old, new = {}, {}
            exec(code.replace("from flax import optim", "import legacy_optim as optim"), old)
            exec(rewrite(code, Options()).code, new)
            assert new["losses"] == old["losses"]

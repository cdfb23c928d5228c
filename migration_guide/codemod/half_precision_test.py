"""Where half precision is in sight, or a dtype is not, the legacy arithmetic is written."""

from pathlib import Path

import pytest

from migration_guide.codemod import driver, summary
from migration_guide.codemod.inference.half_precision import signs
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite

HEAD = (
    "import jax\nimport jax.numpy as jnp\nimport numpy as np\nfrom flax import linen as nn, optim\n"
)
PERHAPS = {
    "name": "x = jnp.bfloat16",
    "short-name": "use(fp16=True)",
    "text": "x = jnp.zeros(3, 'float16')",
    "numpy-s-name": "x = np.half",
    "flag": "x = train(half_precision=True)",
    "default": "class M(nn.Module):\n    dtype: str = 'bf16'",
    "jmp": "import jmp",
    "dynamic-scale": "optim.DynamicScale()",
    "word-as-text": "PRECISION = 'half'",
    "key-of-settings": "x = {'half_precision': True}",
    "cut-at-underscores": "if FLAGS.use_mixed_precision: pass",
    "from-a-config": "nn.Dense(3, dtype=cfg.dtype)",
    "from-a-flag": "p = jax.tree_map(lambda x: x.astype(FLAGS.model.dtype), p)",
    "from-a-table": "nn.Dense(3, param_dtype=TABLE[name])",
    "unknown-name": "nn.Dense(3, dtype=dtype)",
    "letter": "x.astype('e')",
    "letter-by-position": "jnp.zeros(3, 'e')",
    "number-of-bytes": "np.frombuffer(data, '<f2')",
    "looked-up": "x.astype(getattr(jnp, name))",
    "either": "jnp.asarray(x, dtype=jnp.float32 if a else b)",
    "variable-named-like-a-letter": "d = load()['dtype']\ny = jnp.zeros(3, dtype=d)",
    "cast-to-a-variable": "x.astype(d)",
    "flag-s-into-a-variable": "t = FLAGS.dtype if FLAGS else jnp.float32",
    "flag-by-position": "p = jnp.ones((3, 4), args.dtype)",
    "variable-by-position": "p = jnp.full((3,), 0.5, d)",
    "range": "jnp.arange(0, 3, 1, TYPES[args.precision])",
    "parameter-by-position": "def init(key, shape, dtype):\n    return jnp.zeros(shape, dtype)",
    "handed-on": "class M:\n    dtype = jnp.float32\nm = M(config.model_dtype)",
    "function": "def half(x): return x",
    "switch": "train(half=True)",
    "option": "parser.add_argument('--half-precision')",
}
FLOAT32 = {
    "module-s-own": "nn.Dense(3, dtype=self.dtype)",
    "an-array-s": "x.astype(y[0].dtype)",
    "comment": "x = 1  # in bfloat16",
    "docstring": "def f():\n    'Not in half precision.'",
    "within-a-word": "behalf = remixed",
    "integers": "jnp.zeros((3, 4), dtype=jnp.int32)",
    "letters": "p = x.astype('f'), y.astype('>f4'), z.astype('i')",
    "initializer": "def init(key, shape, dtype=jnp.float32): return jnp.zeros(shape, dtype)",
    "compared": "x.dtype == y",
    "by-position": "jnp.asarray(x, np.int32), jnp.full(3, x, y.dtype), jnp.array(x, copy=c)",
    "no-dtype-by-position": "jnp.arange(a, b, c), jnp.zeros(shape), queue.empty(), jnp.full(s, x)",
    "set": "config.dtype = 'float32'; y = half",
    "key": "x = {'e': y['e'], 'half': y['half']}",
    "variables": "half, mixed = x / 2, half + y",
    "no-python": "f(half",
}


def test_a_word_of_half_precision_or_an_unknown_dtype_decides(subtests: pytest.Subtests):
    for case, code in PERHAPS.items():
        with subtests.test(case):
            (sign,) = signs({Path("train.py"): HEAD + code}).values()
            assert sign.path == "train.py" and sign.text == sign.text.strip() != ""
            assert sign.text in (HEAD + code).splitlines()[sign.line - 1]


def test_what_is_written_out_or_of_an_array_is_float32(subtests: pytest.Subtests):
    for case, code in FLOAT32.items():
        with subtests.test(case):
            assert signs({Path("train.py"): HEAD + code}) == {}


TRAIN = "from flax import optim\n{}\no = optim.Adam(0.1).create(p)\n"
HALF = "def get(c):\n    c.half_precision = True\n"


@pytest.mark.parametrize(
    ("name", "imports", "decides"),
    [
        ("model.py", "import model", True),
        ("model.py", "from . import model as m", True),
        ("net/model.py", "from net.model import (\n    get,\n)", True),
        ("net/__init__.py", "from net import get", True),
        ("net/model.py", "import between", True),
        ("model.py", "", False),
        ("models.py", "import model", False),
        ("__init__.py", "from . import get", True),
        ("model.py", "from {} import model", True),
    ],
    ids=[
        "plain", "relative", "package", "init", "at-a-remove", "neighbour", "alike", "own-package",
        "package-around",
    ],
)  # fmt: skip
@pytest.mark.parametrize("named", ["", "train.py"], ids=["folder", "file"])
def test_the_files_that_a_program_imports_decide_and_no_others(
    tmp_path: Path, name: str, imports: str, decides: bool, named: str
):
    imports = imports.format(tmp_path.name)
    (tmp_path / "net").mkdir()
    (tmp_path / "between.py").write_text("from net import model\n", encoding="utf-8")
    (tmp_path / name).write_text(HALF, encoding="utf-8")
    (tmp_path / "train.py").write_text(TRAIN.format(imports), encoding="utf-8")
    report = driver.migrate([tmp_path / named], Options())
    result = {r.path.name: r for r in report.results}["train.py"]
    assert result.for_float32 is not decides
    assert ("optax_bridge.adam(" in result.code) is decides
    if decides:
        (message,) = result.messages
        assert f"({tmp_path / name}:2: c.half_precision = True)" in message.text
        assert "the legacy bias correction" in message.text and not message.by_hand


def test_the_summary_says_which_files_are_written_for_float32(tmp_path: Path):
    for name in ("full", "a", "b", "c", "d", "sgd"):
        code = "import optax\n" if name == "sgd" else TRAIN.format("")
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    report = driver.migrate([tmp_path], Options())
    (line,) = (x for x in summary.summary(report, Options()).splitlines() if "float32" in x)
    assert line.startswith("Written for float32: ") and "c.py and 2 more. Neither" in line


def test_a_file_belongs_to_the_programs_that_import_it():
    sources = {Path("train.py"): "import optimizers\nx = jnp.bfloat16\n", Path("b.py"): "x = 1\n"}
    decided = signs(sources | {Path("optimizers.py"): "from flax import optim\n"})
    assert {str(path): sign.line for path, sign in decided.items()} == {
        "train.py": 2,
        "optimizers.py": 2,
    }


def test_of_several_files_the_first_one_is_told():
    sources = {Path("main.py"): "import b, a\nx = 1\n", Path("a.py"): "\nx = jnp.bfloat16\n"}
    sources[Path("b.py")] = "y = jnp.float16\nz = jnp.bfloat16\n"
    assert signs(sources)[Path("main.py")].text == "x = jnp.bfloat16"


def test_what_holds_in_half_precision_stays_public_optax():
    code = (
        "import jax.numpy as jnp\nfrom flax import optim\nd = optim.Momentum(0.1), jnp.bfloat16\n"
    )
    result = rewrite(code, Options())
    assert "d = optax.sgd(" in result.code
    assert not result.messages


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

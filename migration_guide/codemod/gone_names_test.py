"""No name that is gone is left in silence, however it is imported: a new name or a comment."""

import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from legacy_optim import gone, removed_names
from migration_guide.codemod.reading.marks import PREFIX
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import settled

# Modules before Linen have one comment in a file: see the cases below.
NAMES = [name for name in gone.names() if not name.startswith(("flax.nn", "flax.deprecated"))]
# Every one that has a new name, and of the others one in ten.
SAMPLE = [n for i, n in enumerate(NAMES) if i % 10 == 0 or getattr(gone.find(n), "new", None)]
# What `run` answers; `jax.xla` and `jax.pxla` have one name each, in the table of their own module.
SAMPLE += [
    f"{module}.{name}"
    for module, names in removed_names.NAMES.items()
    for name in names
    if f"{module}.{name}" not in (*SAMPLE, "jax.xla", "jax.pxla")
]
OWNERS = {name.rpartition(".")[0]: None for name in SAMPLE}


def test_no_name_is_left_in_silence(subtests: pytest.Subtests):
    """One file for all names, one statement for each, so that LibCST starts once."""
    for spelling in ["as", "from", "dotted"]:
        with subtests.test(spelling):
            imports, uses = [], []
            for i, name in enumerate(SAMPLE):
                owner, _, last = name.rpartition(".")
                if spelling == "as":
                    number = list(OWNERS).index(owner)
                    uses.append(f"use({i}, module{number}.{last})")
                elif spelling == "from":
                    imports.append(f"from {owner} import {last} as name{i}")
                    uses.append(f"use({i}, name{i})")
                else:
                    uses.append(f"use({i}, {name})")
            if spelling == "as":
                imports = [f"import {owner} as module{i}" for i, owner in enumerate(OWNERS)]
            elif spelling == "dotted":
                imports = [f"import {top}" for top in sorted({n.partition(".")[0] for n in SAMPLE})]
            code = "\n".join([*imports, "", *uses, ""])
            result = rewrite(code, Options())
            assert result.refused == ""
            lines = result.code.splitlines()
            silent = []
            for use in uses:
                if use in lines and not lines[lines.index(use) - 1].startswith(PREFIX):
                    silent.append(use)
            assert silent == []


CASES = {
    "builtin": ("import numpy as np\nx = np.float(1)", "x = float(1)"),
    "builtin-taken": ("import numpy as np\nfloat = 1\nx = np.float(1)", "x = np.float(1)"),
    "keeps-the-alias": ("import jax.numpy as jnp\nx = jnp.fix, jnp.product", "jnp.prod"),
    "keeps-the-alias-of-a-function": (
        "def f(x):\n    import numpy as np\n    return np.product(x)",
        "    import numpy as np\n    return np.prod(x)",
    ),
    "moved": ("from jax.core import Jaxpr\nx = Jaxpr", "x = jax.extend.core.Jaxpr"),
    "module": ("from jax import api\nx = api.jit(f)", "x = jax.jit(f)"),
    "module-moved": (
        "from jax.experimental import optimizers\nx = optimizers.adam(1)",
        "x = jax.example_libraries.optimizers.adam(1)",
    ),
    "became-optax": (
        "from jax.experimental import optix\nx = optix.chain(optix.global_norm, optix.adam(1))",
        "x = optax.chain(optax.tree.norm, optax.adam(1))",
    ),
    "another-in-optax": (
        "from jax.experimental import optix\nx = optix.add_noise(1, 1, 0)",
        "What to do: optax.add_noise(eta**2, 2 * gamma, key=seed)",
    ),
    "alike-by-position": (
        "from jax.experimental import optix\nx = optix.rmsprop(1, 2, 3, centered=True)",
        "x = optax.rmsprop(1, 2, 3, centered=True)",
    ),
    "another-by-position": (
        "from jax.experimental import optix\nx = optix.rmsprop(1, 2, 3, True)",
        "give centered by name",
    ),
    "another-by-position-perhaps": (
        "from jax.experimental.optix import rmsprop\nx = rmsprop(*sizes)",
        "give centered by name",
    ),
    "decorator": ("from jax import partial\n@partial(f, 1)\ndef g(): pass", "@functools.partial(f"),
    "by-position": (
        "import jax.numpy as jnp\nx = jnp.where(c, x=1.0, y=0.0)",
        "x = jnp.where(c, 1.0, 0.0)",
    ),
    "by-position-in-another-order": (
        "import jax.numpy as jnp\nx = jnp.where(\n    y=0.0,\n    x=1.0,\n    condition=c)",
        "x = jnp.where(\n    c,\n    1.0,\n    0.0)",
    ),
    "by-position-unknown": (
        "import jax.numpy as jnp\nx = jnp.where(*c, x=1.0, y=0.0)",
        "give the argument by position",
    ),
    "told-of-the-later-name": (
        "import jax\nx = jax.api.custom_transforms(f)",
        "What to do: use jax.custom_jvp",
    ),
    "keyword": ("import jax.numpy as jnp\nx = jnp.clip(y, a_max=1)", "x = jnp.clip(y, max=1)"),
    "keyword-gone": ("import jax\nx = jax.nn.softmax(y, initial=0.0)", "# optax-bridge: jax.nn"),
    "called": (
        "from jax.interpreters.xla import _DeviceArray\n_DeviceArray(x)",
        "jax.numpy.asarray",
    ),
    "omnistaging": ("import jax\nif jax.config.enable_omnistaging(): f()", "remove the call"),
    "pre-linen": ("from flax import nn\nnn.Dense", "optax-bridge: flax 0.4 removed"),
    "star": ("from jax.experimental.loops import *", "# optax-bridge: jax.experimental.loops"),
    "name-of-star": ("from jax.numpy import *\nx = product(y)", "x = jax.numpy.prod(y)"),
    "variable": ("import jax\nxnp = jax.numpy\nx = xnp.product(y)", "x = xnp.prod(y)"),
    "variable-of-a-class": (
        "from flax import linen as nn\nE = nn.Embed\nE.embedding",
        "# optax-bridge: flax.linen.Embed.embedding",
    ),
    "variable-by-hand": ("import numpy\nxnp = numpy\nx = xnp.float(y)", "# optax-bridge: numpy.f"),
    "string": ("import numpy as np\nx: 'np.asscalar' = 1", "# optax-bridge: numpy.asscalar"),
    "clip-unknown": ("def f(x): return x.clip(a_min=0)", "now takes min= and max="),
    "tostring": ("import numpy as np\nnp\nnp.e\nx.tostring()", "(note): if this is an array: "),
}


def test_what_becomes_of_a_name(subtests: pytest.Subtests):
    for code, expected in CASES.values():
        with subtests.test(code):
            result = settled(code + "\n")
            assert expected in result.code


def test_what_is_there_stays(subtests: pytest.Subtests):
    for code in [
        "import jax\njax.config.update('jax_enable_x64', True)\n",
        "import numpy as np\nnp.float32(np.inf)\n",
        "from mine import jax\njax.partial(f)\n",
        "import jax.numpy as jnp\njnp.clip(x, max=1)\n",
        "from jax.numpy import *\nfrom mine import *\nproduct(x)\n",
        "from numpy import *\nfloat(x)\n",
        "import numpy as np\nimport jax.numpy as jnp\nx = np\nx = jnp\nx.product(y)\n",
        "class A:\n    def clip(self, a_min): pass\nA().clip(a_min=0)\n",
        "x.tostring()\n",
    ]:
        with subtests.test(code):
            assert rewrite(code, Options()).code == code


def test_a_module_within_a_name_that_is_written_anew_is_no_second_matter():
    result = rewrite("import jax\nf = jax.api.jit(g)\n", Options())
    assert result.code == "import jax\nf = jax.jit(g)\n"
    assert not result.messages


AFTER_A_REWRITE = {
    "function": "from jax.config import config\nconfig.disable_omnistaging()\n",
    "attribute": "from jax.config import config\nprint(config.FLAGS.debug)\n",
    "variable": "from jax.config import config\nc = config\nc.FLAGS\n",
    "class": "import jax\nx = jax.ShapedArray(s, d).named_shape, jax.ShapedArray.named_shape\n",
    "module": "from jax.experimental import stax\nstax.normalize(x)\n",
    "keyword": "import jax\njax.ShapedArray(s, d, named_shape={})\n",
}


def test_the_result_of_a_rewrite_is_looked_up_again(subtests: pytest.Subtests):
    """`config.FLAGS` becomes `jax.config.FLAGS`, which is gone as well."""
    for case in AFTER_A_REWRITE:
        with subtests.test(case):
            result = settled(AFTER_A_REWRITE[case])
            assert any(
                message.by_hand and " is gone: " in message.text for message in result.messages
            )


def test_an_import_that_nothing_uses_goes(subtests: pytest.Subtests):
    """Left alone it would be an ImportError, and nothing would have said so."""
    for name in ["jax.api.jit", "jax.experimental.optimizers.adam", "jax.partial"]:
        with subtests.test(name):
            module, _, last = name.rpartition(".")
            code = f"from {module} import {last}\nfrom flax import optim\nd = optim.Adam(0.1)\n"
            assert f"import {last}" not in rewrite(code, Options()).code


NO_MODULES = [*gone._inventory()["objects"]]
IMPORTS_OF_A_MODULE = {
    "used": "import {root}\nimport {module}\nuse({module})\n",
    "alone": "import {module}\nuse({root})\n",
    "unused": "import {root}\nimport {module}\nuse({root})\n",
    "as": "import {module} as other\nuse(other)\n",
    "with another": "import os, {module} as other\nuse(other, os)\n",
    "tried": "try:\n    import {module}\nexcept ImportError:\n    pass\nuse(1)\n",
    "name of it": "from {module} import lost\nuse(lost)\n",
    "star": "from {module} import *\nuse(1)\n",
}
# Every form for a module of each kind, and one form for every module.
KINDS_OF_MODULES = ("flax.optim", "flax.optim.adam", "jax.config", "numpy.core.memmap")


def test_no_module_that_is_an_object_today_is_imported(subtests: pytest.Subtests):
    """`jax.config` is there, and `import jax.config` a ModuleNotFoundError."""
    for module, case in [
        *((module, "used") for module in NO_MODULES),
        *((m, case) for m in KINDS_OF_MODULES for case in IMPORTS_OF_A_MODULE if case != "used"),
    ]:
        with subtests.test(module):
            root = module.partition(".")[0]
            code = IMPORTS_OF_A_MODULE[case].format(module=module, root=root)
            result = settled(code)
            if not any(message.by_hand for message in result.messages):
                assert f"import {module}" not in result.code and f"from {module}" not in result.code
                with warnings.catch_warnings(action="ignore"):  # `numpy.core` is deprecated
                    exec(result.code, {"use": lambda *_: None})


def test_what_is_gone_is_the_module_and_not_its_name():
    code = "try:\n    import jax.config\nexcept ImportError:\n    pass\n"
    (message,) = rewrite(code, Options()).messages
    assert message.text.startswith("the module jax.config is gone: jax 0.4.")
    assert message.text.endswith("What to do: from jax import config")


def test_a_question_of_the_type_of_an_array_is_left_to_a_person(subtests: pytest.Subtests):
    for code in [
        "type(x) is jnp.DeviceArray",
        "jax.interpreters.xla.DeviceArray == x.__class__",
        "type(x) not in [int, float, jnp.DeviceArray]",
        "type(f(x)) in (int, jnp.DeviceArray)",
        "type(x) is type(y) is jnp.DeviceArray",
        "{jnp.DeviceArray: 'a', np.ndarray: 'b'}.get(type(x))",
        "{int: 'a', jax.interpreters.xla.DeviceArray: 'b'}[type(x)]",
        "KINDS = {jnp.DeviceArray, np.ndarray}",
        "KINDS = frozenset({jnp.DeviceArray})",
    ]:
        with subtests.test(code):
            imports = "import jax\nimport jax.numpy as jnp\n"
            result = settled(f"{imports}x = {code}\n")
            assert [m.by_hand for m in result.messages] == [True]


def test_a_class_of_arrays_that_is_not_compared_with_a_type_gets_no_comment(
    subtests: pytest.Subtests,
):
    for code in [
        "KINDS = (int, jnp.DeviceArray)\ny = isinstance(x, KINDS)",
        "y: dict[str, jnp.DeviceArray] = {'a': x}",
        "y = {'type': jnp.DeviceArray}",
    ]:
        with subtests.test(code):
            result = rewrite(f"import jax.numpy as jnp\n{code}\n", Options())
            assert "jax.Array" in result.code and not result.messages


def test_a_call_without_effect_goes(subtests: pytest.Subtests):
    for before, after in {
        "import jax as j\nj.config.enable_omnistaging()\nj.a\n": "import jax as j\nj.a\n",
        "from jax.config import config\nconfig.enable_omnistaging()\nx = 1\n": "x = 1\n",
        "from jax.config import enable_omnistaging as e\nif x:\n    e()\n": "if x:\n    pass\n",
        "import jax\njax.config.enable_omnistaging(); jax.jit(f)\n": "import jax\njax.jit(f)\n",
    }.items():
        with subtests.test(before):
            result = rewrite(before, Options())
            assert (result.code, result.messages) == (after, ())


def test_what_a_second_round_says_has_the_line_of_the_program():
    code = "from jax.config import config\nimport flax.optim\nconfig.disable_omnistaging()\n"
    (message,) = rewrite(code, Options()).messages
    assert message.line == 3


def test_an_index_that_may_be_a_list_takes_what_run_takes(subtests: pytest.Subtests):
    code = "import jax\ndef add(x, i, y): return jax.ops.index_add(x, i, y)\n"
    module: dict[str, Any] = {}
    exec(settled(code).code, module)
    x, ids = np.arange(6.0).reshape(2, 3), np.array([0, 1])
    indices = [0, (0, 1), slice(1), None, ids, [], [0, 1], [np.int32(1)], [True, False]]
    for index in (*indices, [0, slice(1)], [None, 0], [..., 0], [[0, 1], [1, 2]], [ids, ids]):
        with subtests.test(str(index)):
            expected = removed_names.NAMES["jax.ops"]["index_add"](x, index, 1.0)
            np.testing.assert_array_equal(module["add"](jnp.asarray(x), index, 1.0), expected)

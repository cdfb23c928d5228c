"""Imports: which are known, which go, which come, and where."""

import re
from pathlib import Path

import pytest

from migration_guide.codemod import driver
from migration_guide.codemod.reading.marks import PREFIX
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import settled
from migration_guide.codemod.writing import random_numbers

IMPORTS = "import jax\nfrom flax import optim\n"


IMPORT_FORMS = {
    "from-flax": "from flax import optim\nD = optim.Adam\n",
    "alias": "from flax import optim as o\nD = o.Adam\n",
    "module": "import flax.optim\nD = flax.optim.Adam\n",
    "package": "import flax\nD = flax.optim.Adam\n",
    "module-alias": "import flax.optim as fo\nD = fo.Adam\n",
    "name": "from flax.optim import Adam\nD = Adam\n",
    "name-alias": "from flax.optim import Adam as A\nD = A\n",
    "submodule": "from flax.optim.adam import Adam\nD = Adam\n",
    "submodule-module": "from flax.optim import adam\nD = adam.Adam\n",
}


def test_import_forms(subtests: pytest.Subtests):
    for form in IMPORT_FORMS:
        with subtests.test(form):
            code = IMPORT_FORMS[form].replace("D = ", "x = ").replace("Adam\n", "Adam(1.0)\n")
            code = code.replace("import Adam(1.0)", "import Adam").replace(
                "x = A\n", "x = A(1.0)\n"
            )
            result = rewrite(code, Options())
            assert "x = optax.adam(1.0)" in result.code
            assert "optim" not in result.code
            assert ("import flax" in result.code) is False
            assert "import optax\n" in result.code


def test_a_star_that_alone_can_have_brought_a_name(subtests: pytest.Subtests):
    for module in ["flax", "flax.optim", "flax.optim.adam"]:
        with subtests.test(module):
            name = "optim.Adam" if module == "flax" else "Adam"
            stars = f"from {module} import *\nfrom jax.numpy import *\n"
            code = f"{stars}x = {name}(1.0).create(p)\nx.target\n"
            new = rewrite(code, Options()).code
            assert "tx=optax.adam(" in new
            assert "x.params" in new
            assert (f"from {module} import *" in new) == (module == "flax")


def test_nobody_knows_what_two_stars_bring_so_nothing_is_rewritten():
    code = "from flax.optim import *\nfrom helpers import *\nx = Adam(1).create(p)\nx.target\n"
    result = settled(code)
    (message,) = result.messages
    assert "import them by name" in message.text
    assert result.code == f"{PREFIX}{message.text}\n{code}"


def test_a_fallback_is_no_other_meaning_and_an_alternative_is():
    name = "LAMB\nexcept ImportError:\n    LAMB = None\nd = LAMB(0.1)\n"
    assert (
        "d = optax_bridge.lamb(0.1)"
        in rewrite(f"try:\n    from flax.optim import {name}", Options()).code
    )
    name = "LAMB\nelse:\n    from mine import LAMB\nd = LAMB(0.1)\n"
    assert "d = LAMB(0.1)" in rewrite(f"if x:\n    from flax.optim import {name}", Options()).code


KEPT = {
    "shadowed": "from flax.optim import Adam, Momentum\ndef Adam(x): return x\n",
    "star-shadowed": "from flax.optim import *\ndef Adam(x): return x\n",
    "star-handed-on": "from flax.optim import *\n__all__ = ['Adam']\n",
}


def test_an_import_that_stays_says_why(subtests: pytest.Subtests):
    for case in KEPT:
        with subtests.test(case):
            result = settled(f"{KEPT[case]}x = Momentum(1.0).create(p)\n")
            (message,) = result.messages
            assert (message.line, message.by_hand) == (1, True)
            assert f"{PREFIX}{message.text}\nfrom flax.optim import " in result.code
            assert "tx=optax.sgd(" in result.code


def test_imports_stand_above_their_first_use(subtests: pytest.Subtests):
    for code in [
        "from flax import optim; x = optim.LAMB(0.1)\n",
        "import os\nif os.environ:\n    from flax import optim\n    x = optim.LAMB(0.1)\n"
        "import jax\n",
        "from flax import optim\n@f(optim.LAMB(0.1))\ndef f(): pass\nimport optax_bridge\n",
    ]:
        with subtests.test(code):
            new = rewrite(code, Options()).code
            assert new.index("import optax_bridge") < new.index("optax_bridge.lamb")


def test_a_name_that_is_something_else_is_not_taken(subtests: pytest.Subtests):
    for line in ["import optax_fork as optax", "optax = 1"]:
        with subtests.test(line):
            code = f"{line}\nfrom flax import optim\nx = optim.Adam(0.1)\n"
            result = rewrite(code, Options())
            assert result.code == code
            assert "the file uses the name 'optax' itself: rename it first" in result.refused


BLANK = {
    "before": ("\n", "", "\n"),
    "more-before": ("\n\n", "\n", "\n\n"),
    "more-after": ("\n", "\n\n", "\n\n"),
    "comments": ("\n# a\n", "\n# b\n", "\n# a\n\n# b\n"),
}


def test_no_blank_line_is_eaten(subtests: pytest.Subtests):
    for case, (above, below, together) in BLANK.items():
        with subtests.test(case):
            code = f"import os\n{above}from flax import optim\n{below}import foo\nos, foo\n"
            expected = f"import os\n{together}import foo\nos, foo\n"
            assert rewrite(code, Options()).code == expected


def test_nothing_is_imported_twice(subtests: pytest.Subtests):
    for head in [
        "def f():\n    return optax.adam(1)\nimport optax\n",
        "try:\n    import optax\nfinally: pass\n",
    ]:
        with subtests.test(head):
            new = rewrite(f"from flax import optim\n{head}x = optim.Adam(0.1)\n", Options()).code
            assert new.count("import optax\n") == 1


def test_a_block_of_one_removed_import_passes():
    code = "if x: from flax import optim\n"
    assert rewrite(code, Options()).code == "if x: pass\n"


# Imports -> those of the result, in isort's order, where the rest of the file needs Optax.
ORDERED = {
    "plain-first": (
        "import jax\nimport jax.numpy as jnp\nimport numpy as np\nfrom flax import linen as nn\n"
        "from flax import optim\n",
        "import jax\nimport jax.numpy as jnp\nimport numpy as np\nimport optax\nimport optax_bridge"
        "\nfrom flax import linen as nn\n",
    ),
    "by-module": (
        "from absl import app\nimport flax\nfrom flax import optim\nimport jax\n"
        "import tensorflow as tf\n",
        "from absl import app\nimport flax\nimport jax\nimport optax\nimport optax_bridge\n"
        "import tensorflow as tf\n",
    ),
    "sections": (
        "import sys\n\nimport jax\nfrom flax import optim\n\nimport mine\n",
        "import sys\n\nimport jax\nimport optax\nimport optax_bridge\n\nimport mine\n",
    ),
    "where-the-old-one-stood": (
        "import jax\nsetup()\nfrom flax import optim\n",
        "import jax\nsetup()\nimport optax\nimport optax_bridge\n",
    ),
    "below-what-sets-jax-up": (
        "import jax\nfrom flax import optim\n\njax.config.update('a', 1)\n",
        "import jax\n\njax.config.update('a', 1)\nimport optax\nimport optax_bridge\n",
    ),
}


def test_imports_stand_in_the_order_of_isort(subtests: pytest.Subtests):
    for case, (before, after) in ORDERED.items():
        with subtests.test(case):
            rest = "x = optim.LAMB(0.1), optim.GradientDescent(lr)\n"
            new = rewrite(f"{before}\n{rest}", Options()).code
            assert new.partition("\nx = ")[0] == after


FOLDER = "checkpoints.save_checkpoint('run', optim.Adam(0.1).create(p), 1)\n"
OF_PYTHON = {
    "among-its-own": (
        "import math\nimport sys\n\nimport jax\n",
        "import math\nimport os\nimport sys\n\nimport jax\n",
    ),
    "above-others": ("import jax\n", "import os\n\nimport jax\n"),
    "below-the-future": (
        '"""A page."""\n\nfrom __future__ import annotations\n\nimport jax\n',
        '"""A page."""\n\nfrom __future__ import annotations\n\nimport os\n\nimport jax\n',
    ),
}


def test_modules_of_python_stand_in_their_section(subtests: pytest.Subtests):
    for case, (before, after) in OF_PYTHON.items():
        with subtests.test(case):
            code = (
                f"{before}from flax import optim\nfrom flax.training import checkpoints\n{FOLDER}"
            )
            assert rewrite(code, Options()).code.startswith(after)


SCALES = {
    "module": ("from flax import optim\n", "optim.DynamicScale()"),
    "name": ("from flax.optim import DynamicScale\n", "DynamicScale()"),
    "there-already": (
        "from flax import optim\nfrom flax.training.dynamic_scale import DynamicScale as D\n",
        "optim.DynamicScale(), D",
    ),
}


def test_dynamic_scale_is_imported_by_its_name(subtests: pytest.Subtests):
    for case, (head, use) in SCALES.items():
        with subtests.test(case):
            new = rewrite(f"{head}s = {use}\n", Options()).code
            assert "from flax.training.dynamic_scale import DynamicScale\n" in new
            assert f"s = {use.replace('optim.', '')}\n" in new and "flax.optim" not in new
            assert rewrite(new, Options()).code == new


def test_dynamic_scale_is_dotted_where_the_name_is_taken():
    code = "from flax import optim\nclass DynamicScale: pass\ns = optim.DynamicScale()\n"
    new = rewrite(code, Options()).code
    assert "s = flax.training.dynamic_scale.DynamicScale()\n" in new


OPTIONS = {
    "default": Options(),
    "optax": Options(recipe="optax"),
    "exact": Options(recipe="exact"),
}
SETTINGS = {
    "item": "os.environ['JAX_ENABLE_X64'] = '1'",
    "setdefault": "os.environ.setdefault('JAX_ENABLE_X64', '1')",
    "putenv": "os.putenv('JAX_ENABLE_X64', '1')",
    "if": "if os.path.exists('x'):\n    os.environ['JAX_ENABLE_X64'] = '1'",
    "function-above": "def f(o):\n    return optim.Adam(0.1).create(o)\nset_up(os.environ)",
    "flags": "flags = os.path.join('a', 'b')\nparse(flags)",
    "config": "import jax\njax.config.update('jax_enable_x64', True)\nimport flax",
    "imported-config": "from jax import config\nconfig.update('jax_enable_x64', True)",
}


def test_what_is_set_before_jax_is_imported_stays_above(subtests: pytest.Subtests):
    """`os` is used by what is written new, as well as by what sets the environment."""
    for setting, mode in [
        *((setting, "default") for setting in SETTINGS),
        *(("item", mode) for mode in list(OPTIONS)[1:]),
    ]:
        with subtests.test(setting):
            head = f"import os\n{SETTINGS[setting]}\n"
            code = (
                f"{head}import jax\nimport jax.numpy as jnp\nfrom flax import optim\n"
                "from flax.training import checkpoints\n"
                "o = optim.Adam(0.1).create({'w': jnp.zeros(3)})\n"
                "checkpoints.save_checkpoint('folder', o, 3)\n"
            )
            new = rewrite(code, OPTIONS[mode]).code
            assert "os.path.abspath('folder')" in new
            last = SETTINGS[setting].splitlines()[-1]
            assert new.index(f"{last}\n") < new.index("import optax")
            assert new.index("import jax.numpy as jnp\n") < new.index("import optax")


WITHIN = (
    "    import jax\n    from flax import optim\n    o = optim.Adam(0.1).create({'w': 1.0})\n"
    "    print(o.target)\n"
)
SET = "    os.environ['JAX_ENABLE_X64'] = '1'\n"
MAIN = "if __name__ == '__main__':\n"
BLOCKS = {
    "function": f"import os\ndef main():\n{WITHIN}{MAIN}{SET}    main()\n",
    "set-in-function": f"import os\ndef main():\n{SET}{WITHIN}main()\n",
    "main-guard": f"import os\n{MAIN}{SET}{WITHIN}",
}


def test_what_one_block_imports_stays_in_it_where_jax_is_set_up(subtests: pytest.Subtests):
    for case in BLOCKS:
        with subtests.test(case):
            result = settled(BLOCKS[case])
            assert (
                "    import jax\n    import optax\n    import optax_bridge\n    o = " in result.code
            )
            assert "\nimport" not in result.code and result.messages == ()


def test_imports_that_may_stand_above_what_sets_jax_up_are_said():
    code = f"import os\ndef other():\n{WITHIN}def main():\n{WITHIN}{MAIN}{SET}    main()\n"
    result = settled(code)
    (message,) = result.messages
    assert "\nimport optax\n" in result.code and "move them below that" in message.text


def test_an_environment_that_is_set_later_moves_nothing():
    code = (
        f"import os\n{IMPORTS}def f():\n    os.environ['A'] = 'b'\nx = optim.Adam(0.1).create(p)\n"
    )
    new = rewrite(code, Options()).code
    assert new.index("import optax_bridge") < new.index("def f")


@pytest.mark.parametrize("stem", ["train", "__init__"])
def test_a_dead_import_stays_where_others_may_import_it_from(stem: str, tmp_path: Path):
    (tmp_path / f"{stem}.py").write_text("from flax.optim import Adam\nx = 1\n")
    (tmp_path / "main.py").write_text("from flax import optim\ny = optim.Adam(0.1)\n")
    new = {
        result.path.stem: result.code
        for result in driver.migrate([tmp_path], Options()).changed_files
    }
    assert ("from legacy_optim import Adam\n" in new[stem]) == (stem == "__init__")


TF = "try:\n  import tf\nexcept ImportError:\n  tf = None\n"
# "+" stands before an import that comes, "|" where the setting does.
HEADS = {
    "tried-import": f"import os\n{TF}import jax\n|x = 1\n",
    "tried-import-of-jax": "try:\n  import jax\nexcept ImportError:\n  jax = None\n|x = 1\n",
    "condition": "+import jax\nfrom jax import random\nif old:\n  import a\nimport b\n|x = 1\n",
    "other-name": f"+import jax\nimport jax.random as jr\n{TF}import numpy\n|x = 1\n",
    "path": "import jax\nsys.path.append('.')\nimport numpy\n|x = 1\n",
    "call-without-jax": "import tf\ntf.enable()\nimport jax\n|x = 1\n",
    "draw": "+import jax\nfrom jax import random\n|w = random.normal(k)\nimport jax\n",
    "definition": "import jax\n|def f(): pass\nimport numpy\n",
    "function-alone": "+import jax\n|def f():\n  os.environ = b\n  import jax\n  jax.jit(h)\n",
}


def test_old_random_numbers_are_set_where_jax_is_bound_and_nothing_is_drawn(
    subtests: pytest.Subtests,
):
    for name, head in HEADS.items():
        with subtests.test(name):
            old = re.sub(r"\+.*\n|\|", "", head)
            new = head.replace("+", "").replace("|", f"\n{random_numbers.LINE}\n\n")
            draws = "def g(): return r.PRNGKey(0)\n"
            result = settled(f"{old}{draws}", Options(old_random_numbers=True))
            assert result.code == f"{new}{draws}"
            assert bool(result.messages) == (name == "function-alone")  # JAX comes earlier there

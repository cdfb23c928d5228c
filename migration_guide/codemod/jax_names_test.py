"""What `run` answers for, `migrate` rewrites or leaves to a person: no name in silence."""

import pytest

from legacy_optim import removed_names
from migration_guide.codemod.reading.marks import PREFIX
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.writing.context import Options

# `jax.xla` and `jax.pxla` stand for their one name, which is in the table of their own module.
WHOLE = {"jax.xla": "jax.xla.DeviceArray", "jax.pxla": "jax.pxla.ShardedDeviceArray"}
NAMES = [f"{module}.{name}" for module, names in removed_names.NAMES.items() for name in names]


@pytest.mark.parametrize("name", NAMES, ids=str)
def test_a_removed_name_is_rewritten_or_left_to_a_person(name: str):
    name = WHOLE.get(name, name)
    module = name.rpartition(".")[0]
    code = f"import jax\nimport {module}\nfrom flax import optim\nx = optim.Adam(0.1), {name}\n"
    result = rewrite(code, Options())
    assert result.refused == ""
    assert PREFIX in result.code or f", {name}\n" not in result.code

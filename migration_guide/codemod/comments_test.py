"""A program that restores by Orbax's handler of pytrees is told what that does not refuse."""

import pytest

from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite

HEAD = "import orbax.checkpoint as ocp\nfrom flax import optim\nopt = optim.Adam(0.1).create(p)\n"
SAID = "restores arrays whose shapes differ"


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("c = ocp.PyTreeCheckpointer()", True),
        ("c = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())", True),
        ("new = m.restore(1, args=ocp.args.PyTreeRestore(opt))", True),
        ("new = m.restore(1, args=ocp.args.StandardRestore(opt))", False),
        ("c = ocp.StandardCheckpointer()", False),
    ],
)
def test_the_line_stays_and_has_a_comment(line: str, is_told: bool):
    code = rewrite(f"{HEAD}{line}\n", Options()).code
    assert line in code and (SAID in code) == is_told


def test_a_program_without_old_files_is_told_nothing():
    line = "c = ocp.PyTreeCheckpointer()"
    assert SAID not in rewrite(f"{HEAD}{line}\n", Options(recipe="optax")).code
    without = f"import orbax.checkpoint as ocp\n{line}\n"
    assert rewrite(without, Options()).code == without

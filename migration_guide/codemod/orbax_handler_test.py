"""Programs that restore by Orbax name our handler, which refuses arrays of another shape."""

import pytest

from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite

HEAD = "import orbax.checkpoint as ocp\nfrom flax import optim\nopt = optim.Adam(0.1).create(p)\n"
OURS = "optax_bridge.checkpoints.TrainState"


def test_orbax_is_given_our_handler(subtests: pytest.Subtests):
    for before, after in [
        ("c = ocp.PyTreeCheckpointer()", f"c = ocp.Checkpointer({OURS}Handler())"),
        (
            "c = ocp.PyTreeCheckpointer(use_ocdbt=False)",
            f"c = ocp.Checkpointer({OURS}Handler(use_ocdbt=False))",
        ),
        (
            "c = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())",
            f"c = ocp.AsyncCheckpointer({OURS}Handler())",
        ),
        ("m.save(1, args=ocp.args.PyTreeSave(opt))", f"m.save(1, args={OURS}Save(opt))"),
        (
            "opt = m.restore(1, args=ocp.args.PyTreeRestore(opt))",
            f"opt = m.restore(1, args={OURS}Restore(opt))",
        ),
    ]:
        with subtests.test(before):
            assert after in rewrite(f"{HEAD}{before}\n", Options()).code


def test_other_handlers_stay(subtests: pytest.Subtests):
    for line in [
        "opt = m.restore(1, args=ocp.args.StandardRestore(opt))",
        "c = ocp.StandardCheckpointer()",
        "c = ocp.PyTreeCheckpointer(0)",
    ]:
        with subtests.test(line):
            assert line in rewrite(f"{HEAD}{line}\n", Options()).code


def test_a_program_that_stays_with_flax_keeps_orbax_too():
    line = "c = ocp.PyTreeCheckpointer()"
    assert line in rewrite(f"{HEAD}{line}\n", Options(recipe="optax")).code
    without = f"import orbax.checkpoint as ocp\n{line}\n"
    assert rewrite(without, Options()).code == without

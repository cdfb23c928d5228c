"""Replicated optimizers: averaged gradients, and one copy for what is saved."""

import pytest

from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.rewrite_test import IMPORTS, SETUP


def test_half_of_what_belongs_together_is_left_to_a_person():
    """Averaged gradients need the rules of replicate and of the steps."""
    code = f"{IMPORTS}{SETUP}opt = opt.replicate()\nopt.apply_gradient(g)\n"
    some = frozenset({"constructors", "create", "replicate"})
    result = rewrite(code, Options(rules=some))
    assert result.code.endswith("\nopt = opt.replicate()\nopt.apply_gradient(g)\n")
    assert ["pmean" in m.text for m in result.messages if m.by_hand] == [True]


def test_gradients_of_optimize_are_averaged():
    code = f"{IMPORTS}{SETUP}opt = opt.replicate()\nopt, loss = opt.optimize(f)\n"
    assert "apply_gradients(grads=jax.lax.pmean(grads, " in rewrite(code, Options()).code


def test_optimizers_over_axes_of_two_names_are_left_to_a_person():
    code = (
        f"{IMPORTS}{SETUP}other = optim.Adam(0.1).create(p)\nopt = opt.replicate(axis_name='a')\n"
    )
    code += (
        "opt.apply_gradient(g)\nother = other.replicate(axis_name='b')\nother.apply_gradient(g)\n"
    )
    result = rewrite(code, Options())
    assert result.code.count(".replicate(axis_name=") == 2
    assert [m.by_hand for m in result.messages if "replicate()" in m.text] == [True, True]


def test_one_copy_of_what_is_replicated_is_saved_and_restored(subtests: pytest.Subtests):
    for call, saves in [
        ("checkpoints.save_checkpoint('/d', {}, 3)", True),
        ("checkpoints.save_checkpoint('/d', step=3, target={})", True),
        ("serialization.to_bytes({})", True),
        ("serialization.to_state_dict(target={})", True),
        ("checkpoints.restore_checkpoint('/d', {})", False),
        ("checkpoints.restore_checkpoint(target={}, ckpt_dir='/d')", False),
        ("serialization.from_bytes({}, data)", False),
        ("serialization.from_bytes(encoded_bytes=data, target={})", False),
        ("serialization.from_state_dict({}, state)", False),
        ("serialization.from_state_dict(state=state, target={})", False),
    ]:
        with subtests.test(call):
            code = (
                "from flax import serialization\nfrom flax.training import checkpoints\n"
                f"{IMPORTS}{SETUP}"
                f"opt = opt.replicate()\nopt.apply_gradient(g)\nx = {call.format('opt')}\n"
            )
            expected = call.format("flax.jax_utils.unreplicate(opt)")
            if not saves:
                home, name = expected.split("(")[0].rsplit(".", 1)
                expected = expected.replace(f"{home}.{name}", f"optax_bridge.checkpoints.{name}")
                expected = f"flax.jax_utils.replicate({expected})"
            result = rewrite(code, Options())
            assert result.code.splitlines()[-1] == f"x = {expected}"
            assert not any(m.by_hand for m in result.messages)

"""`--recipe optax`: only public Optax and Flax, and a comment where they have no equivalent."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax.core import FrozenDict
from flax.training.train_state import TrainState

from migration_guide.codemod import driver
from migration_guide.codemod.reading.marks import NOTE
from migration_guide.codemod.results import Options, Rewritten
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.writing import optax_alone

HEAD = "import jax\nfrom flax import optim\n"
OPTAX_ALONE = Options(recipe="optax")
STATE = "flax.training.train_state.TrainState"
SGD = "optax.sgd(learning_rate=learning_rate, momentum=0.9)"
INJECTED = (
    f"optax.inject_hyperparams(lambda learning_rate: {SGD}, hyperparam_dtype=jax.numpy.float32)"
)


def _rewritten(body: str) -> Rewritten:
    result = rewrite(HEAD + body, OPTAX_ALONE)
    assert result.refused == ""
    assert rewrite(result.code, OPTAX_ALONE).code == result.code
    return result


WRITTEN = {
    "created": (
        "o = optim.Adam(lr).create(p)",
        f"o = {STATE}.create(apply_fn=None, params=p, tx=optax.adam(lr))",
    ),
    "annotated": (
        "def f(o: optim.Optimizer): return o.target",
        f"def f(o: {STATE}): return o.params",
    ),
    "asked": ("isinstance(x, optim.Optimizer)", f"isinstance(x, {STATE})"),
    "bound": (
        "jax.jit(optim.GradientDescent(lr).create)(p)",
        f"jax.jit(lambda params: {STATE}.create(apply_fn=None, params=params, "
        "tx=optax.sgd(lr)))(p)",
    ),
    "rate-per-call": (
        "o = optim.Momentum(0.1).create(p)\no = o.apply_gradient(g, learning_rate=lr)",
        f"o = {STATE}.create(apply_fn=None, params=p, tx={INJECTED}(learning_rate=0.1))\n"
        "o = with_hyper_params(o, learning_rate=lr).apply_gradients(grads=g)",
    ),
    "rate-per-call-given-first": (
        "o = optim.Momentum(0.1).create(p)\no = o.apply_gradient(learning_rate=lr, grads=g)",
        f"o = {STATE}.create(apply_fn=None, params=p, tx={INJECTED}(learning_rate=0.1))\n"
        "o = with_hyper_params(o, learning_rate=lr).apply_gradients(grads=g)",
    ),
    "rate-only-per-call": (
        "d = optim.Momentum()\no = d.create(p)\no.apply_gradient(g, learning_rate=lr)",
        f'd = {INJECTED}(learning_rate=float("nan"))\n'
        f"o = {STATE}.create(apply_fn=None, params=p, tx=d)\n"
        "with_hyper_params(o, learning_rate=lr).apply_gradients(grads=g)",
    ),
    "rate-of-optimize": (
        "o = optim.Momentum(0.1).create(p)\no, l = o.optimize(f, learning_rate=lr)",
        f"o = {STATE}.create(apply_fn=None, params=p, tx={INJECTED}(learning_rate=0.1))\n"
        "l, grads = jax.value_and_grad(f)(o.params)\n"
        "o = with_hyper_params(o, learning_rate=lr).apply_gradients(grads=grads)",
    ),
    "schedule": (
        "def fn(step): return 0.1 / (1 + step)\nd = optim.Momentum(beta=0.9)\n"
        "def f(o, g): return o.apply_gradient(g, learning_rate=fn(o.state.step))\n"
        "f(d.create(p), g)",
        "def fn(step): return 0.1 / (1 + step)\n"
        f"d = {SGD.replace('=learning_rate', '=fn')}\n"
        "def f(o, g): return o.apply_gradients(grads=g)\n"
        f"f({STATE}.create(apply_fn=None, params=p, tx=d), g)",
    ),
}


def test_public_optax_and_flax_alone(subtests: pytest.Subtests):
    for case, (before, after) in WRITTEN.items():
        with subtests.test(case):
            result = _rewritten(f"{before}\n")
            assert result.messages == ()
            assert result.code.endswith(f"{after}\n")
            assert "optax_bridge" not in result.code
            assert "legacy_optim" not in result.code
            assert ("def with_hyper_params(" in result.code) == (
                "with_hyper_params(o" in result.code
            )


STAYS = {
    "no-such-optimizer": ("o = optim.Adagrad(0.1).create(p)", "optax_bridge.adagrad(", STATE),
    "groups-of-unknown-traversals": (
        "o = optim.MultiOptimizer((t, optim.Adam(0.1))).create(p)",
        "optax_bridge.multi_optimizer((t, optax.adam(",
        STATE,
    ),
    "groups-given-on": (
        "t = optim.ModelParamTraversal(f)\nuse(t)\n"
        "o = optim.MultiOptimizer((t, optim.Adam(0.1))).create(p)",
        "t = optax_bridge.path_mask(f)",
        "optax_bridge.multi_optimizer((t, optax.adam(",
    ),
    "groups-starred": (
        "o = optim.MultiOptimizer(*groups).create(p)",
        "optax_bridge.multi_optimizer(*groups)",
    ),
    "groups-with-rates-per-call": (
        "t = optim.ModelParamTraversal(f)\n"
        "o = optim.MultiOptimizer((t, optim.Adam(0.1))).create(p)\n"
        "o.apply_gradient(g, learning_rate=r)",
        "optax_bridge.multi_optimizer((t, optax_bridge.adam(",
    ),
    "within-an-own-definition": (
        "class Own(optim.OptimizerDef):\n    def __init__(self, *parts): self.parts = parts\n"
        "d = Own(optim.Adam(0.1) if a else optim.Momentum(0.2), [optim.LAMB(r) for r in s])",
        "Own(legacy_optim.Adam(0.1) if a else legacy_optim.Momentum(0.2), "
        "[legacy_optim.LAMB(r) for r in s])",
    ),
    "own-definition": (
        "class Own(optim.OptimizerDef): pass\no = Own().create(p)",
        "optax_bridge.wrap_definition(Own())",
        STATE,
    ),
    "focus-unknown": (
        "o = optim.Adam(0.1).create(p, focus=t)",
        "optax_bridge.multi_optimizer(",
        STATE,
    ),
    "array": (
        "import jax.numpy as jnp\no = optim.Adam(0.1).create(jnp.ones(3))",
        "optax_bridge.TrainState.create(",
        "tx=optax.adam(",
    ),
    "array-of-another-optimizer": (
        "import jax.numpy as jnp\no = optim.Adam(0.1).create(jnp.ones(3))\n"
        "q = optim.Adam(0.2).create(o.target * 2)",
        "optax_bridge.TrainState.create(apply_fn=None, params=o.params * 2",
    ),
    "array-through-functions": (
        "import jax.numpy as jnp\ndef f(d, p): return d.create(p)\n"
        "f(optim.Adam(0.1), jnp.ones(3).astype(int) * 2)",
        "optax_bridge.TrainState.create(",
        "optax.adam(",
    ),
    "rate-per-call-of-one-that-stays": (
        "o = optim.Adagrad().create(p)\no.apply_gradient(g, learning_rate=lr)",
        "optax_bridge.adagrad(",
        "apply_gradients(grads=g, learning_rate=lr)",
    ),
    "hyper-parameters-read": (
        "o = optim.Adam(0.1).create(p)\nx = o.optimizer_def.hyper_params.learning_rate",
        "optax_bridge.adam(0.1)",
        'o.tx.hyper_params["learning_rate"]',
    ),
}


def test_what_has_no_equal_stays_and_says_why(subtests: pytest.Subtests):
    for case, (before, *expected) in STAYS.items():
        with subtests.test(case):
            result = _rewritten(f"{before}\n")
            assert f"{NOTE}stays on optax_bridge" in result.code
            assert not any("not public Optax:" in m.text for m in result.messages)
            for part in expected:
                assert part in result.code
            assert [m for m in result.messages if m.by_hand] == []


def test_traversals_stay_and_say_why(subtests: pytest.Subtests):
    for line, why in [
        ("ts = map(optim.ModelParamTraversal, fs)", "Flax's own is deprecated"),
        ("class T(optim.Traversal): pass", "are deprecated"),
        ("optim.t_identity.update(g, p)", "are deprecated"),
    ]:
        with subtests.test(line):
            after = line.replace("optim.", "legacy_optim.")
            note = f"{NOTE}stays on legacy_optim: "
            shown = _rewritten(f"{line}\n").code.splitlines()
            assert shown[-1] == after
            assert note in shown[-2] and shown[-2].endswith(why)
            assert rewrite(f"{HEAD}{line}\n", Options()).code.splitlines()[-1] == after
            assert note not in rewrite(f"{HEAD}{line}\n", Options()).code


ADAM = "optax.adam(0.1)"
REST = '"rest": optax.set_to_zero()'
GROUPED = {
    "groups": (
        "kernels = optim.ModelParamTraversal(lambda path, _: 'kernel' in path)\n"
        "d = optim.MultiOptimizer((kernels, optim.Adam(0.1)), "
        "(optim.ModelParamTraversal(is_bias), optim.Adagrad(0.1)))",
        "kernels = lambda path, _: 'kernel' in path\n"
        f'd = optax.partition({{"0": {ADAM}, '
        f'"1": optax_bridge.adagrad(0.1), {REST}}}, '
        "group_labels(kernels, is_bias))",
    ),
    "focus": (
        "t = optim.ModelParamTraversal(f)\no = optim.Adam(0.1).create(p, focus=t)",
        f"t = f\no = {STATE}.create(apply_fn=None, params=p, "
        f'tx=optax.partition({{"0": {ADAM}, {REST}}}, group_labels(t)))',
    ),
}


def test_groups_of_functions_are_partitions(subtests: pytest.Subtests):
    for case, (before, after) in GROUPED.items():
        with subtests.test(case):
            result = _rewritten(f"{before}\n")
            lines = [line for line in result.code.splitlines() if not line.startswith(NOTE)]
            assert "\n".join(lines).endswith(after)
            assert result.code.count("def group_labels(*selectors):") == 1


def test_labels_say_which_group_takes_a_leaf():
    names: dict[str, Any] = {"jax": jax}
    exec(optax_alone.SOURCE.format(name="labels"), names)
    params = FrozenDict({"a": {"kernel": jnp.ones(2), "bias": jnp.ones(1)}, "kernel": jnp.ones(3)})
    labels = names["labels"](
        lambda path, leaf: path == "/a/kernel", lambda path, leaf: leaf.shape == (3,)
    )
    assert labels(params) == FrozenDict({"a": {"kernel": "0", "bias": "rest"}, "kernel": "1"})
    with pytest.raises(ValueError, match="/a/kernel is in groups 0, 1"):
        names["labels"](lambda path, _: "/a/k" in path, lambda path, _: "kernel" in path)(params)


def test_a_rate_of_a_step_has_the_dtype_of_the_state():
    names: dict[str, Any] = {"jax": jax}
    exec(optax_alone._SOURCE.format(name="with_rates"), names)
    tx = optax.inject_hyperparams(optax.sgd, hyperparam_dtype=jnp.float32)(learning_rate=0.1)
    params = {"w": jnp.ones(1)}
    state = TrainState.create(apply_fn=lambda x: x, params=params, tx=tx)
    new = names["with_rates"](state, learning_rate=2)
    assert new.opt_state.hyperparams["learning_rate"].dtype == jnp.float32
    assert new.apply_gradients(grads=params).params["w"] == -1
    assert state.apply_gradients(grads=params).params["w"] == jnp.float32(0.9)


def test_what_groups_restore_is_converted_by_the_programs_own_state():
    body = (
        "from flax.training import checkpoints\nt = optim.ModelParamTraversal(f)\n"
        "def make(): return optim.Adam(0.1).create(p, focus=t)\n"
        "o = checkpoints.restore_checkpoint('/run', make())\n"
    )
    assert "convert /run /run_new --like .py:make\n" in _rewritten(body).code
    assert (
        ":FUNCTION, where FUNCTION takes no arguments"
        in _rewritten(body.replace("make())", "o)")).code
    )


def test_what_restores_gets_the_command_that_converts():
    body = (
        "from flax import serialization\nfrom flax.training import checkpoints\n"
        "o = optim.Adam(0.1).create(p)\no = checkpoints.restore_checkpoint('/runs/a', o)\n"
        "o = serialization.from_bytes(o, data)\no = o.restore_state(d)\n"
    )
    result = _rewritten(body)
    options = "--optimizer 'Adam(learning_rate=0.1)' --recipe optax"
    said = f"{NOTE}files written before need converting: optax-bridge convert"
    assert f"{said} /runs/a /runs/a_new {options}\n" in result.code
    assert result.code.count(f"{said} OLD NEW --format msgpack {options}\n") == 2
    assert "o = checkpoints.restore_checkpoint('/runs/a', o)\n" in result.code
    assert "o = flax.serialization.from_state_dict(o, d)\n" in result.code
    assert "optax_bridge." not in result.code


def test_a_program_that_has_this_package_already_reads_old_files_by_it():
    """As it does after it was told to annotate what looked like an optimizer."""
    code = (
        "import optax_bridge\n# optax-bridge: is this an optimizer of flax.optim? Annotate it\n"
        "def f(o: optax_bridge.TrainState): return o.restore_state(d)\n"
    )
    new = rewrite(code, OPTAX_ALONE).code
    assert "def f(o: optax_bridge.TrainState): return optax_bridge.checkpoints.from_" in new


def test_what_is_left_by_hand_does_without_this_package(subtests: pytest.Subtests):
    """Flax's own TrainState has no `to_legacy`."""
    for code in [
        "s = optim.Optimizer(d, x, y)",
        "from flax import serialization\n"
        "s = serialization.to_state_dict(optim.Adam(0.1).create(p))['target']",
    ]:
        with subtests.test(code):
            (message,) = [m for m in _rewritten(f"{code}\n").messages if m.by_hand]
            assert "optax_bridge." not in message.text
            assert "to_legacy" not in message.text


def test_a_note_about_converting_comes_once(tmp_path: Path):
    """A second look, which another comment of the file leads to, knows the definition no more."""
    (tmp_path / "main.py").write_text(
        "from flax import optim\nfrom flax.training import checkpoints\n"
        "from flax.jax_utils import replicate\n"
        "o = optim.Adam(0.1).create(p)\no = checkpoints.restore_checkpoint('/runs/a', o)\n"
        "o = replicate(o)\ns = optim.OptimizerState(0, 1)\n"
    )
    (tmp_path / "other.py").write_text("from flax import optim\no = optim.Adam(0.1).create(p)\n")
    code = next(
        r.code for r in driver.migrate([tmp_path], OPTAX_ALONE).results if "main" in r.path.name
    )
    assert code.count("files written before need converting") == 1
    options = "--optimizer 'Adam(learning_rate=0.1)' --recipe optax"
    assert f"convert /runs/a /runs/a_new {options}; it writes" in code
    assert "one copy: restore into one, then replicate that" in code


def test_a_rate_within_the_state_is_converted_by_the_programs_own_state():
    """Around the optimizer's state stands that of `optax.inject_hyperparams`."""
    body = (
        "from flax.training import checkpoints\no = optim.Momentum(0.1).create(p)\n"
        "o = checkpoints.restore_checkpoint(folder, o)\n"
        "o = o.apply_gradient(g, learning_rate=r)\n"
    )
    code = _rewritten(body).code
    assert "optax.inject_hyperparams" in code
    assert "convert OLD NEW/checkpoint_STEP --like" in code
    assert ":FUNCTION, where FUNCTION takes no arguments" in code
    assert "--recipe" not in code


def test_the_helper_of_an_earlier_run_is_used_again():
    made = "o = optim.Momentum(0.1).create(p)\no = o.apply_gradient(g, learning_rate=lr)\n"
    first = _rewritten(made).code
    second = _rewritten(first.removeprefix("import jax\n") + f"from flax import optim\n{made}").code
    assert second.count("def with_hyper_params(") == 1
    assert second.count("o = with_hyper_params(o, learning_rate=lr)") == 2


@pytest.mark.parametrize("mapped", ["@jax.pmap", "@partial(jax.pmap, axis_name='b')", ""])
def test_what_orbax_restores_is_taken_off_its_device_for_pmap(mapped: str, tmp_path: Path):
    step = f"from functools import partial\n{mapped}\n"
    (tmp_path / "steps.py").write_text(
        f"import jax\n{step}def step(o): return o.apply_gradient(1)\n"
    )
    (tmp_path / "main.py").write_text(
        "from flax import optim\nfrom flax.training import checkpoints\n"
        "o = optim.Adam(0.1).create(p)\no = checkpoints.restore_checkpoint('/run', o)\n"
    )
    result = driver.migrate([tmp_path], OPTAX_ALONE).results[0]
    call = "checkpoints.restore_checkpoint('/run', o)"
    line = f"o = jax.device_get({call})" if mapped else f"o = {call}"
    assert result.code.splitlines()[-1] == line
    assert rewrite(result.code, OPTAX_ALONE).code == result.code


def test_a_setting_is_what_it_was_where_the_optimizer_was_made():
    """`optax.inject_hyperparams` calls its function again at each step."""
    code = _rewritten(
        "import jax.numpy as jnp\n"
        "made = [optim.Momentum(beta=b).create({'w': jnp.ones(1)}) for b in (0.5, 0.9)]\n"
        "for _ in range(2):\n"
        "    made = [o.apply_gradient(o.target, learning_rate=0.1) for o in made]\n"
    ).code
    assert "lambda learning_rate, beta=b: " in code and "static_args=('beta',)" in code
    names: dict[str, Any] = {}
    exec(code, names)
    one, other = (state.params["w"][0] for state in names["made"])
    # w1 = 1 - 0.1; w2 = w1 - 0.1 * (b + w1)
    assert jnp.allclose(jnp.array([one, other]), jnp.array([0.76, 0.72]), rtol=1e-6)

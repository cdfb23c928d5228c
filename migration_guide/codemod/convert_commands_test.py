"""Every `convert` command that `migrate` prints works as printed, on files of the genuine flax."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from migration_guide.codemod import driver, summary
from migration_guide.codemod.results import Options
from optax_bridge.cli.app import app

SAVED = Path(__file__).parents[1] / "corpus" / "saved"
HEAD = """\
import flax
import jax.numpy as jnp
from flax import optim, serialization, traverse_util
from flax.training import checkpoints
"""
LAYERS = (
    "{'embedding': jnp.zeros((6, 3)), "
    "'layer_0': {'kernel': jnp.zeros((3, 3)), 'bias': jnp.zeros(3)}, "
    "'layer_1': {'kernel': jnp.zeros((3, 2)), 'bias': jnp.zeros(2)}}"
)
GROUPS = """\
{guard}kernels = traverse_util.ModelParamTraversal(lambda path, _: 'kernel' in path)
{guard}biases = traverse_util.ModelParamTraversal(lambda path, _: path.endswith('bias'))
{guard}definition = optim.MultiOptimizer(
{guard}    (kernels, optim.Momentum(learning_rate=rate, beta=0.8, weight_decay=1e-3)),
{guard}    (biases, optim.Adadelta(learning_rate=0.5, rho=0.8)))
"""
STATE = """\
@flax.struct.dataclass
class State:
    step: int
    optimizer: optim.Optimizer
"""
# The saved checkpoint -> programs that restore it from `old`.
PROGRAMS = {
    "one": (
        "bare_optimizer",
        "def make(params, rate):\n"
        "    d = optim.Adam(learning_rate=rate, beta2=0.99, weight_decay=1e-2)\n"
        "    return d.create(params)\n"
        "o = make(init(), FLAGS.learning_rate)\no = checkpoints.restore_checkpoint('old', o)\n",
    ),
    "in-a-tuple": (
        "checkpoint_tuple",
        "def restore(o):\n    return checkpoints.restore_checkpoint('old', (o, 0, 0.0))\n"
        "o = optim.Momentum(learning_rate=FLAGS.rate, beta=0.8).create(p)\nrestore(o)\n",
    ),
    "several": (
        "policy_and_critic",
        "@flax.struct.dataclass\nclass State:\n    policy_optimizer: optim.Optimizer\n"
        "    critic_optimizer: optim.Optimizer\n"
        "    target_critic_params: dict\n    env_steps: int\n"
        "p = {'mean': jnp.zeros((3, 1)), 'log_std': jnp.zeros(1)}\n"
        "q = {'hidden': jnp.zeros((4, 6)), 'out': jnp.zeros(6)}\n"
        "def init_state():\n    policy = optim.Adam(learning_rate=3e-3, beta1=0.5).create(p)\n"
        "    critic = optim.GradientDescent().create(q)\n    return State(policy, critic, q, 0)\n"
        "def main():\n    state = init_state()\n    state = step(state)\n"
        "    state = checkpoints.restore_checkpoint('old', state, prefix='sac_')\n"
        "    state.policy_optimizer.apply_gradient(g)\n"
        "    state.critic_optimizer.apply_gradient(g, learning_rate=0.1)\n",
    ),
    "a-list": (
        "list_of_members",
        "def member(rate):\n    return optim.AdaBelief(rate, eps=1e-8).create(p)\n"
        "members = [member(0.1), member(0.2), member(0.3)]\n"
        "with open('old', 'rb') as f:\n"
        "    members = serialization.from_bytes(members, f.read())\n",
    ),
    "groups": (
        "parameter_groups",
        GROUPS.format(guard="")
        + STATE
        + "state = checkpoints.restore_checkpoint('old', State(0, definition.create(p)))\n",
    ),
    "groups-that-a-function-makes": (
        "parameter_groups",
        f"{STATE}def make():\n    rate = 0.1\n{GROUPS.format(guard='    ')}".replace(
            "'kernel' in path)", "'kernel' in path and True)"
        )
        + f"    return State(step=0, optimizer=definition.create({LAYERS}))\n"
        "if __name__ == '__main__':\n    state = make()\n"
        "    state = checkpoints.restore_checkpoint('old', state)\n",
    ),
    "wrapped": (
        "state_with_methods",
        "@flax.struct.dataclass\nclass State:\n    optimizer: optim.Optimizer\n"
        "    average: dict\n"
        "def make(d): return State(optimizer=d.create(p), average=p)\n"
        "state = make(optim.WeightNorm(optim.Adam(learning_rate=0.01), wn_decay=1e-3))\n"
        "state = serialization.from_bytes(state, open('old', 'rb').read())\n",
    ),
    "in-a-dict": (
        "dictionary",
        "o = optim.Adagrad(learning_rate=0.1, eps=1e-6).create(p)\n"
        "checkpoints.restore_checkpoint('old', {'optimizer': o, 'epoch': 0})\n",
    ),
}


COMPARED = {
    "optim.GradientDescent(rate)": ("GradientDescent(learning_rate=0.1)", "optax.sgd"),
    "optim.Momentum(1e-3, weight_decay=0.1)": (
        "Momentum(learning_rate=0.001, weight_decay=0.1)",
        "optax.chain(optax.add_decayed_weights(0.1), optax.sgd",
    ),
    "optim.Momentum(RATE, beta=RATE)\nRATE = 0.3": (
        "Momentum(learning_rate=0.3, beta=0.3)",
        "optax.sgd(learning_rate=0.3, momentum=0.3)",
    ),
    "optim.LAMB(beta1=0.8)": ("LAMB(learning_rate=0.1, beta1=0.8)", "optax_bridge.lamb"),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def summary_of(code: str) -> str:
    """Writes a program as train.py, and returns the summary of its migration."""
    Path("train.py").write_text(f"{HEAD}{code}\n", encoding="utf-8")
    return summary.summary(driver.migrate([Path("train.py")], Options()), Options(), written=True)


@pytest.mark.parametrize("call", COMPARED)
def test_the_last_line_is_the_next_command_and_it_finds_both_the_same(call: str):
    program, command, *sides = shlex.split(
        summary_of(f"d = {call}\no = d.create(p)").splitlines()[-1]
    )
    old, new = COMPARED[call]
    assert (program, command, sides[0]) == ("optax-bridge", "compare", old)
    assert sides[1].startswith(new)
    result = CliRunner().invoke(app, [command, *sides])
    assert result.exit_code == 0, result.output


MAKERS = {
    "def make():\n    return optim.Adam(0.3).create(p)": "Adam(learning_rate=0.3)",
    "def make(lr=0.3):\n    return optim.Adam(lr).create(p)": "Adam(learning_rate=0.3)",
    "LR = 0.3\ndef make():\n    return optim.Adam(LR).create(p)": "Adam(learning_rate=0.3)",
    "def make():\n    return optim.Adam(FLAGS.lr).create(p)": "",
}


@pytest.mark.parametrize("maker", MAKERS)
def test_a_checkpoint_in_sight_is_checked_next_with_the_program_s_own_rate(maker: str):
    text = summary_of(f"{maker}\no = checkpoints.restore_checkpoint('run', make())")
    (command,) = re.findall("check-resume run --program train.py:make (.*)", text)
    old = "--old OLD_PROGRAM:make, where OLD_PROGRAM is"
    assert command.startswith(f"--optimizer '{MAKERS[maker]}'" if MAKERS[maker] else old)
    assert "FUNCTION" not in text
    bytes_of = "serialization.from_bytes(make(), open('run.v1', 'rb').read())"
    text = summary_of(f"{maker}\no = {bytes_of}")
    assert "convert run.v1 run_new.v1 " in text and "NEW_FOLDER" not in text


@pytest.mark.parametrize("maker", MAKERS)
def test_a_folder_that_a_flag_names_is_filled_in_and_the_function_is_not(maker: str):
    restore = "o = checkpoints.restore_checkpoint(FLAGS.workdir, o)"
    text = summary_of(f"{maker}\ndef main():\n    o = make()\n    {restore}")
    assert "optax-bridge check-resume CHECKPOINT --program train.py:make --" in text
    assert "  optax-bridge convert OLD NEW/checkpoint_STEP --optimizer 'Adam(learn" in text
    assert "FUNCTION" not in text and "is imported" not in text


# The program's own call of the function that makes its state -> what is to be written out.
CALLS = {
    "make(1e-6)": "",
    "make(eps=EPS / 2)": "",
    "(make(), 0)": "",
    "{'o': make(1e-6), 'epoch': 3}": "",
    "make(eps)": "  # the program's own call, with eps written out",
    "make(FLAGS.eps)": "  # the program's own call, with FLAGS written out",
    "make(later)": "  # the program's own call, with later written out",
    "[make(config.eps), make(eps)]": "  # the program's own call, with config, eps written out",
    "make(optim.Adam)": "  # the program's own call",
}


@pytest.mark.parametrize("way", ["", "state = "])
@pytest.mark.parametrize("call", CALLS)
def test_a_function_that_the_program_gives_arguments_is_called_with_them(call: str, way: str):
    """Without them it may make another optimizer."""
    state = way.partition(" ")[0] or call
    text = summary_of(
        "EPS = 0.1\ndef make(eps=1e-8):\n    return optim.Adam(0.1, eps=eps).create(p)\n"
        f"def main(eps, config):\n    {way and way + call}\n"
        f"    checkpoints.restore_checkpoint(FLAGS.run if {bool(way)} else 'run', {state})\n"
        "if __name__ == '__main__':\n    later = 0.1\n    main(0.2, get_config())"
    )
    name = "state_to_restore"
    command = f" --program train.py:{name} --old OLD_PROGRAM:{name}, where OLD_PROGRAM is"
    assert command in text and f"\n  def {name}():\n" in text and "...(...)" not in text
    assert f"\n      return {call}{CALLS[call]}\n" in f"{text}\n"
    assert "replaces a learning rate" not in text and "replaces a computed" not in text


ON_IMPORT = {
    "{}": True,
    "for i in range(3):\n    {}": True,
    "if __name__ == '__main__':\n    {}": False,
    "def main():\n    {}": False,
}


@pytest.mark.parametrize("place", ON_IMPORT)
def test_a_program_that_trains_when_it_is_imported_is_named(place: str):
    """The commands import it: they would train, and write into the run's own folder."""
    restore = place.format("o = checkpoints.restore_checkpoint('run', o)")
    text = summary_of(f"o = optim.Adam(0.1).create(p)\n{restore}")
    assert ("this runs on import" in text) == ON_IMPORT[place]


RATE_PER_CALL = (
    "p = {{'w': jnp.zeros(3)}}\n"
    "def make():\n    return optim.Momentum({}beta=0.8).create(p), 0, 0.0\n"
    "def main({}):\n    o, *_ = checkpoints.restore_checkpoint({}, make())\n"
    "    o.apply_gradient(g, learning_rate=0.3)\n"
)


@pytest.mark.parametrize(("setting", "parameter"), [("", ""), ("learning_rate=None, ", "folder")])
def test_a_rate_that_steps_give_is_an_option_of_check_resume(setting: str, parameter: str):
    shutil.copy(SAVED / "checkpoint_tuple" / "run" / "checkpoint_3", "old")
    code = RATE_PER_CALL.format(setting, parameter, parameter or "'old'")
    Path("before.py").write_text(HEAD + code)
    shutil.copy("before.py", "train.py")
    report = driver.migrate([Path("train.py")], Options())
    driver.save(report.results)
    text = summary.summary(report, Options(), written=True)
    _, name, options = text.partition("optax-bridge check-resume")
    command = name + options.splitlines()[0].partition(", where")[0]
    assert command.endswith(" --learning-rate 0.1")
    command = command.replace("OLD_PROGRAM", "before.py").replace("CHECKPOINT", "old")
    result = CliRunner().invoke(app, [*shlex.split(command)[1:], "--steps", "4"])
    assert result.exit_code == 0, f"{command}\n{result.output}"


OWN_GROUPS = "class Groups(optim.MultiOptimizer): pass\no = Groups((t, {})).create(p)"


@pytest.mark.parametrize("definition", ["optim.Adam(0.1)", "d"])
def test_definitions_that_stay_legacy_for_a_class_of_the_program_are_named(definition: str):
    text = summary_of(OWN_GROUPS.format(definition))
    assert ("Still on legacy_optim: Adam. The code" in text) == (definition != "d")


def _migrated(case: str, recipe: str) -> list[str]:
    name, program = PROGRAMS[case]
    (old,) = (path for path in (SAVED / name).rglob("*") if path.is_file())
    shutil.copy(old, "old")
    path = Path("train.py")
    path.write_text(HEAD + program, encoding="utf-8")
    report = driver.migrate([path], Options(recipe=recipe))
    assert not report.refusals
    driver.save(report.results)
    return summary.convert_commands(report)


def test_what_only_the_program_can_make_is_to_be_filled_in():
    """The states of `optax.partition` hold its groups, which the source does not make callable."""
    (command,) = _migrated("groups", "optax")
    assert command == "optax-bridge convert old old_new --like train.py:FUNCTION"


@pytest.mark.parametrize(
    ("case", "recipe"),
    [*((case, "auto") for case in PROGRAMS), ("one", "exact"), ("several", "optax")],
)
def test_every_printed_command_converts(case: str, recipe: str):
    (command,) = _migrated(case, recipe)
    program, *args = shlex.split(command)
    assert (program, args[:2]) == ("optax-bridge", ["convert", "old"])
    assert recipe != "exact" or command.endswith(" --recipe exact")
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, f"{command}\n{result.output}"
    assert Path("old_new").exists()

"""Single faults, planted in copies of the package: the suite finds each, and no proof passes one.

Any change of arithmetic shows in some bit; what stands here needs a setting, a stream, a dtype or a
way of giving the rate to show. A survivor is a case that the suite lacks. Each fault is a piece of
source text and what replaces it; the copy is imported under a name of its own and driven as the
real one is.
"""

import functools
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import legacy_optim
import optax_bridge
from equivalence_tests.compare.comparison import compare
from equivalence_tests.proof import ProofError, prove_equivalence
from equivalence_tests.proof.result import DIFFERENT, IDENTICAL, UNDECIDED
from equivalence_tests.sides.side import Side, state_view
from equivalence_tests.sides.trajectory import driver, trajectory
from equivalence_tests.suite.matrix import axes, cases
from equivalence_tests.suite.matrix.cases import MatrixCase
from optax_bridge.metadata.trees import PyTree

STREAMS = ("normal", "mixture")
PARAMS = {"b": jnp.ones(3), "k": jnp.ones((4, 3))}  # of the proofs


@dataclass(frozen=True)
class Fault:
    """One fault: in a file, instead of one text another, and the case that must find it."""

    name: str
    file: str
    right: str
    wrong: str
    case: MatrixCase

    def __str__(self) -> str:
        return f"{Path(self.file).stem}-{self.name.replace(' ', '_')}"


def _fault(
    optimizer: str, name: str, right: str, wrong: str, setting: int = 0, file: str = "", **axis: str
) -> Fault:
    file = file or f"optimizers/{optimizer}.py"
    return Fault(name, file, right, wrong, MatrixCase(optimizer, setting, **axis))  # type: ignore[arg-type]


_STEP, _MULTI = "exact/leaf_rule.py", "optimizers/multi_optimizer.py"
_GROUPS = "optimizers/groups.py"
_RATE, _GIVEN = "value = value(count)", "setting, value = value, overrides[name]"
_LARS = "grad_norm + hp.weight_decay * param_norm"

FAULTS = (
    _fault("adam", "eps in the root", "jnp.sqrt(nu_hat) + hp.eps", "jnp.sqrt(nu_hat + hp.eps)", 2),
    _fault("adam", "eps dropped", "jnp.sqrt(nu_hat) + hp.eps", "jnp.sqrt(nu_hat)"),
    _fault("adam", "state not carried", "hp.eps), (mu, nu)", "hp.eps), (0 * mu, nu)"),
    _fault("adam", "correction one late", "array(count + 1,", "array(count + 2,", file=_STEP),
    _fault(
        "adam", "correction in float32", "count + 1, dtype", "count + 1, jnp.float32",
        file=_STEP, dtype="bfloat16",
    ),
    _fault(
        "adam", "decay of the new value", "hp.weight_decay * param\n",
        "hp.weight_decay * (param - decrement)\n", 1, _STEP,
    ),
    _fault("adam", "count stands", "state_type(count + 1,", "state_type(count,", file=_STEP),
    _fault("sgd", "stale schedule", _RATE, "value = value(0)", file=_STEP, rate="schedule"),
    _fault(
        "sgd", "schedule one late", _RATE, "value = value(count + 1)", file=_STEP, rate="schedule"
    ),
    _fault("momentum", "override halved", _GIVEN, f"{_GIVEN} / 2", file=_STEP, rate="per-call"),
    _fault("momentum", "stale override", _GIVEN, "setting = value", file=_STEP, rate="per-call"),
    _fault(
        "momentum", "one group's override for all", "{**override, **", "{**overrides[0], **",
        file=_MULTI, rate="per-group",
    ),
    _fault("momentum", "nesterov dropped", "grad + hp.decay * trace if", "trace if", 1),
    _fault("momentum", "trace not carried", "direction, (trace,)", "direction, (grad,)"),
    _fault("rmsprop", "not centered", "variance = nu - jnp.square(mu)", "variance = nu", 1),
    _fault("adagrad", "forgets", "= sum_of_squares + jnp", "= 0.999 * sum_of_squares + jnp"),
    _fault("adadelta", "eps outside", "jnp.sqrt(e_g + hp.eps)", "(jnp.sqrt(e_g) + hp.eps)"),
    _fault(
        "adabelief", "eps outside only", "jnp.square(grad - mu) + hp.eps", "jnp.square(grad - mu)",
        2,
    ),
    _fault(
        "lamb", "guard of today", "param_norm + update_norm > 0.0",
        "(param_norm > 0.0) & (update_norm > 0.0)",
    ),
    _fault("lamb", "decay dropped", "update + hp.weight_decay * param", "update", 1),
    _fault("lars", "decay joined", _LARS, "jnp.linalg.norm(grad + hp.weight_decay * param)", 2),
    _fault("lars", "guard of both", "jnp.logical_or(", "jnp.logical_and("),
    _fault("adafactor", "offset flipped", "count - hp.step_offset", "count + hp.step_offset", 4),
    _fault("adafactor", "never clipped", "update / jnp.maximum(1.0,", "update / jnp.minimum(1.0,"),
    _fault("adafactor", "row mean dropped", "(v_row / row_mean) **", "v_row **", 1),
    _fault("adafactor", "scale without floor", "hp.epsilon2", "0.0"),
    _fault("weight_norm", "decay flipped", "g + hp.wn_decay * d", "g - hp.wn_decay * d", 1),
    _fault("multi_optimizer", "groups exchanged", "in groups)\n", "in groups)[::-1]\n"),
    _fault(
        "multi_optimizer", "mask flipped", "if chosen]", "if not chosen]", 1, _GROUPS
    ),
    _fault(
        "multi_optimizer", "state not carried", "new_states.append(new)",
        "new_states.append(part[2])",
    ),
)  # fmt: skip
PROVED = FAULTS[3::8]  # some seconds each; `--equivalence-full` tries all


@pytest.fixture
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A copy of optax_bridge with the fault in it."""
    fault: Fault = request.param
    name = f"faulty_bridge_{FAULTS.index(fault)}"
    source = Path(optax_bridge.__file__).parent
    for file in source.rglob("*.py*"):
        if file.suffix not in (".py", ".pyi") or file.name.endswith("_test.py"):
            continue
        text, relative = file.read_text(), file.relative_to(source)
        if relative == Path(fault.file):
            assert text.count(fault.right) == 1, f"{fault.file}: {fault.right!r} is not there once"
            text = text.replace(fault.right, fault.wrong)
        copy = tmp_path / name / relative
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace("optax_bridge", name))
    sys.path.insert(0, str(tmp_path))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.remove(str(tmp_path))
        for module in [module for module in sys.modules if module.split(".")[0] == name]:
            del sys.modules[module]


@pytest.mark.parametrize(
    ("faulty", "fault"),
    [(each, each) for each in FAULTS],
    indirect=["faulty"],
    ids=map(str, FAULTS),
)
def test_a_fault_is_found_and_not_proved(faulty: Any, fault: Fault, request: pytest.FixtureRequest):
    assert _differs(faulty, fault.case), f"survived: {fault.right!r} -> {fault.wrong!r}"
    if fault in PROVED or request.config.getoption("--equivalence-full"):
        assert _proved(faulty, fault.case) in (DIFFERENT, UNDECIDED)


@pytest.mark.parametrize(
    "case", [MatrixCase("adam", 1), MatrixCase("momentum", rate="per-group")], ids=str
)
def test_without_a_fault_it_is_identical(case: MatrixCase):
    """Else the faults could be found for being copies."""
    assert not _differs(optax_bridge, case)
    assert _proved(optax_bridge, case) == IDENTICAL


def _differs(package: Any, case: MatrixCase) -> bool:
    """True if one of the streams tells the package from the legacy side."""
    # Eager: what is compiled for one fault is every other fault's as well.
    definition = cases.definition(case)
    other = driver(_side(package, case, lambda state: state_view(state, definition)), "eager")
    params = axes.parameters(case.tree, case.dtype)

    def same(stream: str) -> bool:
        inputs = (axes.gradients(params, stream), axes.rates(cases.peak(case)))
        return compare(_legacy_run(case, stream), trajectory(other, params, inputs)).identical

    try:
        return not all(map(same, STREAMS))
    except (TypeError, ValueError):
        return True  # the suite reports a side that raises, too


@functools.cache
def _legacy_run(case: MatrixCase, stream: str) -> PyTree:
    params = axes.parameters(case.tree, case.dtype)
    inputs = (axes.gradients(params, stream), axes.rates(cases.peak(case)))
    return trajectory(driver(cases.legacy_side(case), "eager"), params, inputs)


def _side(package: Any, case: MatrixCase, view: Any) -> Side:
    """The case's right side, as a package makes it."""
    tx = package.from_legacy(cases.definition(case, cases.schedule(case)))
    create = package.TrainState.create
    return Side(
        "exact",
        lambda params: create(apply_fn=None, params=params, tx=tx),
        cases.recipe_side(case).step,
        view,
    )


def _proved(package: Any, case: MatrixCase) -> str:
    """Returns what is proved of a package's transformation and the legacy optimizer."""
    definition = cases.definition(case, cases.schedule(case))
    params = {name: leaf.astype(case.dtype) for name, leaf in PARAMS.items()}

    def relation(carry: Any) -> Any:  # the state map is held to as well
        old = legacy_optim.Optimizer(definition, carry[1], carry[0])
        conversion = importlib.import_module(f"{package.__name__}.legacy")
        return carry[1].step, carry[0], conversion.to_optax(old)[1]

    pair: Any = definition, package.from_legacy(definition)
    options: dict[str, Any] = {"relation": relation}
    if case.rate != "constant":
        both = cases.legacy_side(case), _side(package, case, lambda state: {"params": state.params})
        pair, options = tuple(map(_functions, both)), {}
    try:
        return prove_equivalence(pair[0], pair[1], params, **options).verdict
    except ProofError:  # a fault may keep a side from being traced
        return UNDECIDED


def _functions(side: Side) -> tuple[Any, Any]:
    def step(grads: Any, state: Any, params: Any) -> Any:
        del params
        new = side.step(state, grads, 0.05)
        return side.view(new)["params"], new

    return side.init, step

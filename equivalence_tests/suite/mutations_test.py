"""Single faults, planted in copies of the package: the suite must find every one.

A survivor is a case that the suite lacks. Each fault is a piece of source text and what replaces
it; the copy is imported under a name of its own and driven as the real one is.
"""

import functools
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import optax_bridge
from equivalence_tests.compare.comparison import compare
from equivalence_tests.sides.side import Side, state_view
from equivalence_tests.sides.trajectory import Driven, driven, trajectory
from equivalence_tests.suite.matrix import axes, sides
from equivalence_tests.suite.matrix.cases import MatrixCase

STREAMS = ("normal", "mixture")


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


_STEP = "exact/leaf_rule.py"
_SCALED_DECAY = "(param - decrement) - hp.learning_rate * hp.weight_decay * param"

FAULTS = (
    _fault("sgd", "wrong sign", "hp.learning_rate * grad", "-hp.learning_rate * grad"),
    _fault("sgd", "gradient squared", "hp.learning_rate * grad", "hp.learning_rate * grad * grad"),
    _fault("adam", "wrong sign", "return hp.learning_rate *", "return -hp.learning_rate *"),
    _fault("adam", "eps in the root", "jnp.sqrt(nu_hat) + hp.eps", "jnp.sqrt(nu_hat + hp.eps)", 2),
    _fault("adam", "eps dropped", "jnp.sqrt(nu_hat) + hp.eps", "jnp.sqrt(nu_hat)"),
    _fault("adam", "beta swapped", "hp.b1 * mu + (1.0 - hp.b1)", "hp.b2 * mu + (1.0 - hp.b2)"),
    _fault("adam", "one beta swapped", "nu + (1.0 - hp.b2)", "nu + (1.0 - hp.b1)"),
    _fault("adam", "square missing", "jnp.square(grad)", "jnp.abs(grad)"),
    _fault("adam", "second moment uncorrected", "nu / (1 - powers[1])", "nu"),
    _fault("adam", "first moment uncorrected", "mu / (1 - powers[0])", "mu"),
    _fault("adam", "state not carried", "hp.eps), (mu, nu)", "hp.eps), (0 * mu, nu)"),
    _fault("adam", "states exchanged", "hp.eps), (mu, nu)", "hp.eps), (nu, mu)"),
    _fault("adam", "correction one late", "array(count + 1,", "array(count + 2,", file=_STEP),
    _fault("adam", "correction one early", "array(count + 1,", "array(count,", file=_STEP),
    _fault(
        "adam",
        "correction in float32",
        "count + 1, dtype",
        "count + 1, jnp.float32",
        file=_STEP,
        dtype="bfloat16",
    ),
    _fault(
        "adam",
        "decay of the new value",
        _SCALED_DECAY,
        _SCALED_DECAY.replace("decay * param", "decay * (param - decrement)"),
        1,
        _STEP,
    ),
    _fault(
        "adam",
        "decay not scaled",
        _SCALED_DECAY,
        "param - decrement - hp.weight_decay * param",
        1,
        _STEP,
    ),
    _fault("adam", "growth", _SCALED_DECAY, _SCALED_DECAY.replace(") -", ") +"), 1, _STEP),
    _fault("adam", "count stands", "state_type(count + 1,", "state_type(count,", file=_STEP),
    _fault("adam", "count runs", "state_type(count + 1,", "state_type(count + 2,", file=_STEP),
    _fault(
        "sgd",
        "stale schedule",
        "value = value(count)",
        "value = value(0)",
        file=_STEP,
        rate="schedule",
    ),
    _fault(
        "sgd",
        "schedule one late",
        "value = value(count)",
        "value = value(count + 1)",
        file=_STEP,
        rate="schedule",
    ),
    _fault(
        "momentum",
        "override halved",
        "setting, value = value, given[name]",
        "setting, value = value, given[name] / 2",
        file=_STEP,
        rate="per-call",
    ),
    _fault(
        "momentum",
        "stale hyper-parameter",
        "setting, value = value, given[name]",
        "setting = value",
        file=_STEP,
        rate="per-call",
    ),
    _fault(
        "momentum",
        "one group's override for all",
        "**{**own, **rest}",
        "**{**given[0], **rest}",
        file="optimizers/multi_optimizer.py",
        rate="per-group",
    ),
    _fault("momentum", "nesterov dropped", "grad + hp.decay * trace if", "trace if", 1),
    _fault("momentum", "dampened", "hp.decay * trace + grad\n", "hp.decay * (trace + grad)\n"),
    _fault("momentum", "trace not carried", "direction, (trace,)", "direction, (grad,)"),
    _fault("momentum", "decay flipped", "grad + hp.weight_decay", "grad - hp.weight_decay", 2),
    _fault(
        "momentum",
        "decay behind the trace",
        "return hp.learning_rate * direction",
        "return hp.learning_rate * (direction + hp.weight_decay * param)",
        2,
    ),
    _fault(
        "rmsprop", "eps in the root", "jnp.sqrt(variance) + hp.eps", "jnp.sqrt(variance + hp.eps)"
    ),
    _fault("rmsprop", "mean not squared", "nu - jnp.square(mu)", "nu - mu", 1),
    _fault("rmsprop", "not centered", "variance = nu - jnp.square(mu)", "variance = nu", 1),
    _fault(
        "adagrad",
        "eps in the root",
        "sqrt(sum_of_squares) + hp.eps",
        "sqrt(sum_of_squares + hp.eps)",
    ),
    _fault("adagrad", "forgets", "= sum_of_squares + jnp", "= 0.999 * sum_of_squares + jnp"),
    _fault("adadelta", "eps outside", "jnp.sqrt(e_g + hp.eps)", "(jnp.sqrt(e_g) + hp.eps)"),
    _fault("adadelta", "gradient for step", "jnp.square(delta)", "jnp.square(grad)"),
    _fault("adabelief", "no belief", "jnp.square(grad - mu)", "jnp.square(grad)"),
    _fault(
        "adabelief",
        "eps outside only",
        "jnp.square(grad - mu) + hp.eps",
        "jnp.square(grad - mu)",
        2,
    ),
    _fault(
        "lamb",
        "guard of today",
        "param_norm + update_norm > 0.0",
        "(param_norm > 0.0) & (update_norm > 0.0)",
    ),
    _fault("lamb", "ratio upside down", "param_norm / update_norm", "update_norm / param_norm"),
    _fault("lamb", "decay dropped", "update + hp.weight_decay * param", "update", 1),
    _fault(
        "lars",
        "denominator of today",
        "grad_norm + hp.weight_decay * param_norm",
        "jnp.linalg.norm(grad + hp.weight_decay * param)",
        2,
    ),
    _fault(
        "lars", "sign of the trace", "hp.momentum * trace + scaled", "scaled - hp.momentum * trace"
    ),
    _fault("lars", "guard of both", "jnp.logical_or(", "jnp.logical_and("),
    _fault("adafactor", "offset flipped", "count - hp.step_offset", "count + hp.step_offset", 4),
    _fault("adafactor", "never clipped", "update / jnp.maximum(1.0,", "update / jnp.minimum(1.0,"),
    _fault("adafactor", "row mean dropped", "(v_row / row_mean) **", "v_row **", 1),
    _fault("adafactor", "scale without floor", "hp.epsilon2", "0.0"),
    _fault(
        "adafactor", "decay flipped", "1.0 - hp.weight_decay_rate", "1.0 + hp.weight_decay_rate", 2
    ),
    _fault("weight_norm", "decay flipped", "g + hp.wn_decay * d", "g - hp.wn_decay * d", 1),
    _fault(
        "weight_norm",
        "eps dropped",
        "_squared_norm(direction) + eps",
        "_squared_norm(direction)",
        2,
    ),
    _fault(
        "multi_optimizer",
        "groups exchanged",
        "tuple(selector for selector, _ in groups)",
        "tuple(selector for selector, _ in groups)[::-1]",
        file="optimizers/multi_optimizer.py",
    ),
    _fault(
        "multi_optimizer",
        "mask flipped",
        "if chosen]",
        "if not chosen]",
        1,
        file="optimizers/groups.py",
    ),
    _fault(
        "multi_optimizer",
        "state not carried",
        "new_states.append(new)",
        "new_states.append(part[2])",
        file="optimizers/multi_optimizer.py",
    ),
    _fault(
        "multi_optimizer",
        "count stands",
        "MultiOptimizerState(state.count + 1,",
        "MultiOptimizerState(state.count,",
        file="optimizers/multi_optimizer.py",
    ),
)


def test_each_fault_has_a_name_of_its_own():
    assert len({str(fault) for fault in FAULTS}) == len(FAULTS)


@pytest.fixture
def faulty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A copy of optax_bridge with the fault in it."""
    fault: Fault = request.param
    number = FAULTS.index(fault)
    name = f"faulty_bridge_{number}"
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


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    ("faulty", "fault"),
    [(fault, fault) for fault in FAULTS],
    indirect=["faulty"],
    ids=[*map(str, FAULTS)],
)
def test_the_suite_finds(faulty: Any, fault: Fault):
    assert _differs(faulty, fault.case), (
        f"survived: {fault.right!r} -> {fault.wrong!r} in {fault.file}"
    )


def test_a_copy_without_a_fault_is_identical():
    """Else the mutants could be found for being copies."""
    for case in (MatrixCase("adam", 1), MatrixCase("momentum", rate="per-group")):
        assert not _differs(optax_bridge, case)


def _differs(package: Any, case: MatrixCase) -> bool:
    """Whether one of the streams tells the package from the legacy side."""
    real = sides.right(case)
    definition = sides.definition(case)
    tx = package.from_legacy(sides.definition(case, sides.schedule(case)))
    side = Side(
        "exact",
        lambda params: package.TrainState.create(apply_fn=None, params=params, tx=tx),
        real.step,
        lambda state: state_view(state, definition),
    )
    made = driven(side, case.drive)
    try:
        seen = (compare(_legacy(case, s), _trajectory(made, case, s)) for s in STREAMS)
        return not all(each.identical for each in seen)
    except (TypeError, ValueError):
        return True  # the suite reports a side that raises, too


@functools.cache
def _compiled_legacy(case: MatrixCase) -> Driven:
    return driven(sides.left(case), case.drive)


@functools.cache
def _legacy(case: MatrixCase, stream: str) -> Any:
    return _trajectory(_compiled_legacy(case), case, stream)


def _trajectory(made: Driven, case: MatrixCase, stream: str) -> Any:
    params = axes.parameters(case.tree, case.dtype)
    inputs = (axes.gradients(params, stream), axes.rates(sides.peak(case)))
    return trajectory(made, params, inputs, parts=2)

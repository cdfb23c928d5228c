import ast
import functools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
import optax_bridge
from equivalence_tests import prove_equivalence
from equivalence_tests.proof import CertificateError, check
from equivalence_tests.proof.certificate import checker, normal_forms, programs, statement
from equivalence_tests.proof.interpreter import balls, entries, run
from equivalence_tests.proof.reading.symbols import unwrap
from equivalence_tests.proof.testing import transformation

PARAMS = {"k": jnp.ones((2, 3))}
OF_TWO = {"b": jnp.ones(2), "k": jnp.ones((2, 1))}


def test_a_certificate_holds_for_its_sides_alone():
    left, right = legacy_optim.Adam(1e-3), optax.adam(1e-3)
    text = prove_equivalence(left, right, PARAMS).to_json()
    checked = check(text, left, right, PARAMS)
    assert (checked.points, checked.shapes) == (5, 3)
    assert checked.forms > 0
    with pytest.raises(CertificateError, match=r"params\['k'\] after step 1"):
        check(text, left, optax.adam(1e-3, b2=0.99, eps=1e-4), PARAMS)


def test_a_wrong_normal_form_is_found():
    left, right = legacy_optim.Adam(1e-3), optax.adam(1e-3)
    data = prove_equivalence(left, right, PARAMS).as_dict()
    data = json.loads(json.dumps(data))
    rows = [row for row in data["cases"][0]["obligations"] if "terms" in row and "params" in row]
    term = data["cases"][0]["quotients"][rows[-1]["terms"][1]][0][0]
    term[0] = f"2{term[0].lstrip('-')}"
    with pytest.raises(CertificateError, match="normal form of"):
        check(data, left, right, PARAMS)


def test_what_only_rounds_is_not_identical():
    left, right = legacy_optim.Adam(0.7), optax.adam(0.7)
    data = prove_equivalence(left, right, PARAMS).as_dict()
    data["cases"][0]["verdict"] = data["verdict"] = "identical"
    with pytest.raises(CertificateError, match="identical, by obligations that are equal over"):
        check(data, left, right, PARAMS)
    _say_identical(data)
    with pytest.raises(CertificateError, match="the certificate says identical"):
        check(data, left, right, PARAMS, points=4)


def _say_identical(data: Any) -> None:
    data["cases"][0]["verdict"] = data["verdict"] = "identical"
    for row in data["cases"][0]["obligations"]:
        row["level"] = "identical"


def test_zeros_of_both_signs_are_tried_together():
    sides = optax.sgd(0.1), optax.stateless(lambda g, p: jax.tree.map(lambda x: -0.1 * x + 0.0, g))
    data = json.loads(prove_equivalence(*sides, PARAMS).to_json())
    assert data["verdict"] == "equal over the reals"
    _say_identical(data)
    with pytest.raises(CertificateError, match="the certificate says identical"):
        check(data, *sides, PARAMS)


def test_settings_of_both_signs_are_tried():
    def left(hp: Any) -> optax.GradientTransformation:
        return optax.scale(-hp["rate"])

    def right(hp: Any) -> optax.GradientTransformation:
        return optax.scale(-jnp.abs(unwrap(hp["rate"])))

    options: dict[str, Any] = {"hyper_params": {"rate": 0.1}}
    data = prove_equivalence(left, left, PARAMS, **options).to_json()
    with pytest.raises(CertificateError, match="after step"):
        check(data, left, right, PARAMS, points=8, **options)


def _with(data: Any, *path: Any, value: Any) -> None:
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


def _stepping(init: Any, step: Callable[..., Any]) -> Any:
    """A count and a moment of each leaf: `step(count, moment, gradient)` gives update, moment."""

    def update(grads: Any, state: Any, params: Any = None) -> Any:
        both = jax.tree.map(lambda m, g: step(state[0], m, g), state[1], grads)
        updates, moments = jax.tree.transpose(jax.tree.structure(grads), None, both)
        return updates, (state[0] + 1, moments)

    return transformation(lambda params: (jnp.int32(0), jax.tree.map(init, params)), update)


def _copied(n: Any, m: Any, g: Any) -> Any:
    new = jnp.where(n == 0, g, 0.5 * m + 0.5 * g)
    return -0.1 * new, new


MOMENTUM = optax.sgd(0.1, momentum=0.5)
RELATED: dict[str, tuple[Any, Any]] = {
    "equal leaves": (
        optax.adam(1e-3),
        optax.chain(optax.scale_by_adam(), optax.scale(-1e-3)),
    ),
    "given": (legacy_optim.Adam(1e-3), optax.adam(1e-3)),
    "derived": (
        MOMENTUM,
        _stepping(jnp.zeros_like, lambda n, m, g: 2 * (0.5 * m - 0.1 * g,)),
    ),
    "of a count": (
        _stepping(lambda p: jnp.ones(()), lambda n, m, g: (-0.1 * m * g, 0.5 * m)),
        _stepping(lambda p: jnp.zeros(()), lambda n, m, g: (-0.1 * 0.5**n * g, m)),
    ),
    "laid out": (optax.flatten(MOMENTUM), MOMENTUM),
    "a cycle": (
        optax_bridge.FullTrainState.create(
            apply_fn=None, params=OF_TWO, tx=MOMENTUM, accumulate_every=2
        ),
        optax.MultiSteps(MOMENTUM, 2),
    ),
    "after the first step": (
        _stepping(jnp.zeros_like, _copied),
        _stepping(jnp.ones_like, _copied),
    ),
    "constant from the first step on": (
        optax.optimistic_gradient_descent(0.1),
        _stepping(jnp.zeros_like, lambda n, m, g: (-0.1 * jnp.where(n == 0, g, 2 * g - m), g)),
    ),
}  # fmt: skip


@functools.cache
def _certificate(name: str) -> str:
    return prove_equivalence(*RELATED[name], OF_TWO).to_json()


def _rename(leaf: str, new: str | None) -> Callable[[Any, Any], None]:
    """Returns a forgery: leaves of the right side have another symbol, or never change."""

    def forge(case: Any, _: Any) -> None:
        (state,) = case["states"]
        names = state["leaves"][1]
        places = [i for i, name in enumerate(names) if isinstance(name, str) and leaf in name]
        texts = [name for name in names if isinstance(name, str)]
        assert places
        for i in places:
            names[i] = next((name for name in texts if new and new in name), new)

    return forge


def _term(change: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Returns a forgery: the coefficients of functions of leaves are others."""

    def forge(case: Any, _: Any) -> None:
        leaves = [n for state in case["states"] for side in state["leaves"] for n in side]
        chosen = {n for n in leaves if isinstance(n, int)}
        assert chosen
        for number in chosen:
            for term in case["quotients"][number][0]:
                term[0] = change(term[0])

    return forge


def _without_terms(case: Any, _: Any) -> None:
    for side in case["states"][0]["leaves"]:
        side[:] = [None if isinstance(spec, int) else spec for spec in side]


def _swap(case: Any, _: Any) -> None:
    """The parts of a leaf stand the other way round."""
    atoms = [atom for atom in case["atoms"] if "trace" in atom["name"]]
    rows = [(atom["name"], atom["index"]) for atom in atoms]
    for atom, (name, index) in zip(atoms, reversed(rows), strict=True):
        atom.update(name=name, index=index)


def _cycle(change: Callable[[Any], Any]) -> Callable[[Any, Any], None]:
    """Returns a forgery of the states of a cycle, with obligations that say nothing of these."""

    def forge(case: Any, _: Any) -> None:
        change(case["states"])
        rows = [row for row in case["obligations"] if "where" not in row]
        step = {"when": "step", "level": "reals", "params": True}
        case["obligations"] = rows + [
            {**step, "leaf": f"params[{key!r}]", "where": state["where"]}
            for state in case["states"]
            for key in OF_TWO
        ]

    return forge


FORGED: dict[str, tuple[str, Callable[[Any, Any], Any], str]] = {
    "a leaf is any number": (
        "equal leaves",
        _rename(".nu['k']", "another"),
        "params.* after step 2",
    ),
    "a leaf never changes": ("equal leaves", _rename(".nu['k']", None), "nu.* after step 1"),
    "a leaf is another": ("equal leaves", _rename(".nu['k']", ".mu['k']"), "nu.* after step 1"),
    "a leaf of another shape": (
        "given",
        _rename("['b'].grad_sq", "['k'].grad_sq"),
        r"its shape is \(2,\), that of .* \(2, 1\)",
    ),
    "a given leaf is any number": (
        "given",
        _rename("['k'].grad_sq", "another"),
        "params.* after step 2",
    ),
    "a given leaf never changes": ("given", _rename("['k'].grad_sq", None), "nu.* after step 1"),
    "a given leaf is another": (
        "given",
        _rename("['k'].grad_sq", "['k'].grad_ema"),
        "nu.* after step 1",
    ),
    "a given count is another": ("given", _rename("step", "count"), "params.* after step 2"),
    "another factor": ("derived", _term(lambda c: f"2{c.lstrip('-')}"), "after step 1"),
    "no factor": ("derived", _without_terms, "after step 1"),
    "another function of a count": ("of a count", _term(lambda c: f"3{c}"), "at the start"),
    "no function of a count": ("of a count", _without_terms, "after step 1"),
    "parts in another order": ("laid out", _swap, "by the certificate"),
    "parts of nothing": ("laid out", _without_terms, "after step 1"),
    "another count of a cycle": (
        "a cycle",
        _cycle(lambda states: _with(states, 0, "where", 0, 2, value=1)),
        "counters' values at the start",
    ),
    "a count out of the cycle": (
        "a cycle",
        _cycle(lambda states: _with(states, 1, "where", 0, 2, value=2)),
        "counters' values after step 1",
    ),
    "a state of the cycle left out": (
        "a cycle",
        _cycle(lambda states: states.pop()),
        "counters' values after step 1",
    ),
    "any state of the cycle": (
        "a cycle",
        _cycle(lambda states: states[0].update(where=[])),
        "after step 1",
    ),
    "what was not of all states": (
        "a cycle",
        lambda case, _: [row.pop("where", 0) for row in case["obligations"]],
        "no state",
    ),
    "from the start on": (
        "after the first step",
        lambda case, _: _with(case, "after_first", value=None),
        "at the start",
    ),
    "counts of another excess": (
        "after the first step",
        lambda case, _: case["after_first"].update(dict.fromkeys(case["after_first"], 5)),
        "the count is below 5",
    ),
    "no states": (
        "given",
        lambda case, _: case.update(states=[], obligations=[]),
        "a proof without states",
    ),
    "no step": (
        "given",
        lambda case, _: case.update(
            obligations=[row for row in case["obligations"] if row["when"] == "start"]
        ),
        r"params\['b'\]: no obligation for the step",
    ),
    "no start": (
        "equal leaves",
        lambda case, _: case["obligations"].remove(case["obligations"][1]),
        r"params\['k'\]: no obligation for the start",
    ),
    "an open obligation": (
        "given",
        lambda case, _: _with(case, "obligations", 2, "level", value="unknown"),
        "obligations that are open",
    ),
    "an older format": ("given", lambda _, data: _with(data, "version", value=3), "version"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_relation_that_is_not_kept_is_refused(name: str):
    pair, forge, message = FORGED[name]
    data = json.loads(_certificate(pair))
    forge(data["cases"][0], data)
    with pytest.raises(CertificateError, match=message):
        check(data, *RELATED[pair], OF_TWO, points=1, steps=2, shapes=0)


@pytest.mark.parametrize("name", RELATED)
def test_a_relation_of_each_kind_is_tried(name: str):
    data = json.loads(_certificate(name))
    checked = check(data, *RELATED[name], OF_TWO, points=1, steps=2, shapes=0)
    assert checked.points == 1 and not checked.skipped


def _change_tenth_digit(data: Any) -> None:
    case = data["cases"][0]
    rows = [row for row in case["obligations"] if "terms" in row and "params" in row]
    term = case["quotients"][rows[-1]["terms"][1]][0][0]
    term[0] = str(Fraction(term[0]) * (1 + Fraction(1, 10**10)))


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (_change_tenth_digit, "normal form of"),
        (lambda data: _with(data, "verdict", value="identical"), "that of the weakest case"),
        (lambda data: _with(data, "scope", "leaves", value={}), "scope: the certificate is for"),
        (lambda data: _with(data, "scope", "coverage", value="all"), "no such coverage"),
        (lambda data: _with(data, "scope", "settings", value=["rate"]), "scope: the settings are"),
    ],
)
def test_a_forged_certificate_is_refused(forge: Callable[[Any], None], message: str):
    left, right = legacy_optim.Adam(1e-3), optax.adam(1e-3)
    data = json.loads(prove_equivalence(left, right, PARAMS).to_json())
    check(data, left, right, PARAMS)
    forge(data)
    with pytest.raises(CertificateError, match=message):
        check(data, left, right, PARAMS)


def _number_out_of_range(data: Any) -> None:
    rows = [row for row in data["cases"][0]["obligations"] if "terms" in row and "params" in row]
    rows[-1]["terms"][0] = 10**6


@pytest.mark.parametrize(
    "forge",
    [
        lambda data: _with(data, "cases", value=[]),
        lambda data: _with(data, "cases", 0, "verdict", value="sure"),
        lambda data: data["cases"][0]["states"][0]["leaves"][0].pop(),
        lambda data: data["cases"][0].pop("states"),
        lambda data: data["scope"].pop("leaves"),
        lambda data: _with(data, "cases", 0, "fixed", value=3),
        lambda data: _with(data, "cases", 0, "states", value=3),
        lambda data: data["cases"][0]["quotients"].clear(),
        _number_out_of_range,
    ],
)
def test_a_malformed_certificate_is_refused(forge: Callable[[Any], None]):
    data = json.loads(_certificate("given"))
    forge(data)
    with pytest.raises(CertificateError, match="malformed: "):
        check(data, *RELATED["given"], OF_TWO, points=1, steps=2, shapes=0)


def test_what_is_no_certificate_is_refused():
    for text in ("", "{", "[]"):
        with pytest.raises(CertificateError, match="malformed: "):
            check(text, *RELATED["given"], OF_TWO)


def _by_mean_square(size: float | None) -> optax.GradientTransformation:
    """Gradients divided by a mean square, of arrays of this size if it is given."""

    def leaf(grad: jax.Array) -> jax.Array:
        return -0.1 * grad / (1 + jnp.sum(grad * grad) / (size or grad.size))

    return optax.stateless(lambda grads, params: jax.tree.map(leaf, grads))


@pytest.mark.parametrize("coverage", ["any", "0 to 5 axes"])
def test_a_scope_wider_than_the_proof_is_refused(coverage: str):
    """By the rows that are for these shapes alone; without those marks, by running others."""
    sides = _by_mean_square(None), _by_mean_square(6)
    data = json.loads(prove_equivalence(*sides, PARAMS).to_json())
    assert (data["verdict"], data["scope"]["coverage"]) == ("identical", "given")
    check(data, *sides, PARAMS)
    data["scope"]["coverage"] = coverage
    with pytest.raises(CertificateError, match="for the shapes given alone"):
        check(data, *sides, PARAMS)
    marks = [row.pop("general", None) for row in data["cases"][0]["obligations"]]
    assert False in marks
    with pytest.raises(CertificateError, match=r"params\['k'\].* after step 1"):
        check(data, *sides, PARAMS)


def test_a_case_that_is_left_out_is_missed():
    def side(hp: Any) -> optax.GradientTransformation:
        return optax.sgd(0.1 if hp["rate"] == 0 else hp["rate"])

    options: dict[str, Any] = {"hyper_params": {"rate": 0.1}}
    data = json.loads(prove_equivalence(side, side, PARAMS, **options).to_json())
    assert len(data["cases"]) == 2
    check(data, side, side, PARAMS, **options)
    del data["cases"][1]
    with pytest.raises(CertificateError, match="no case for rate = 0"):
        check(data, side, side, PARAMS, **options)


def test_a_primitive_that_is_not_known_is_not_passed():
    program = jax.make_jaxpr(lambda x: jax.scipy.special.i0e(x))(np.float32(1.0))
    with pytest.raises(balls.NoRule, match="primitive bessel_i0e"):
        run.run(program, [balls.balls(np.asarray(1.0))], exact=True)
    tx = optax.stateless(lambda grads, params: jax.tree.map(jax.scipy.special.i0e, grads))
    data = prove_equivalence(tx, tx, PARAMS).to_json()
    with pytest.raises(CertificateError, match="not checked: primitive bessel_i0e"):
        check(data, tx, tx, PARAMS)


def _above_nothing(grad: jax.Array) -> jax.Array:
    return jnp.where((grad - grad) / (grad - grad) > 1, grad, 2 * grad)


def test_a_parameter_that_is_never_compared_is_not_passed():
    """Over the reals, where every number is NaN or every comparison without an answer."""
    for function in (lambda g: g * jnp.nan, _above_nothing):
        tx = optax.stateless(lambda grads, params, f=function: jax.tree.map(f, grads))
        data = json.loads(prove_equivalence(tx, tx, PARAMS).to_json())
        assert check(data, tx, tx, PARAMS).bits > 0
        data["verdict"] = data["cases"][0]["verdict"] = "equal over the reals"
        with pytest.raises(CertificateError, match=r"not checked: params\['k'\]"):
            check(data, tx, tx, PARAMS)


def test_an_example_has_to_part_the_sides():
    left, right = optax.sgd(0.1), optax.sgd(0.2)
    data = json.loads(prove_equivalence(left, right, PARAMS).to_json())
    assert check(data, left, right, PARAMS).examples == 1
    with pytest.raises(CertificateError, match="the example does not part the sides"):
        check(data, left, left, PARAMS)


def test_the_checker_imports_nothing_of_the_prover():
    known = normal_forms, programs, statement, balls, entries, run
    for file in (checker, *known):
        tree = ast.parse(Path(str(file.__file__)).read_text())
        modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        ours = ("equivalence_tests", "optax_bridge", "legacy_optim")
        own = [module for module in modules if module.startswith(ours)]
        assert {*own} <= {each.__name__ for each in known}


def test_a_certificate_without_a_claim_has_nothing_to_check():
    left, right = optax.sgd(0.1), optax.sgd(0.2)
    proof = prove_equivalence(left, right, PARAMS)
    assert check(proof.to_json(), left, right, PARAMS).values == 0


def test_bits_are_compared_where_they_are_claimed():
    left, right = legacy_optim.Momentum(0.1), optax_bridge.momentum(0.1)
    params = {"k": jnp.ones((2, 3), jnp.bfloat16)}
    proof = prove_equivalence(left, right, params)
    assert check(proof.to_json(), left, right, params, points=3).bits >= 3 * 4 * 6

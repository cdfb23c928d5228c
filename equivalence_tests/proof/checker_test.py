import ast
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
from equivalence_tests.proof.certificate import checker, equations

PARAMS = {"k": jnp.ones((2, 3))}


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
    with pytest.raises(CertificateError, match="the certificate says identical"):
        check(data, left, right, PARAMS, points=4)


def _with(data: Any, *path: Any, value: Any) -> None:
    for step in path[:-1]:
        data = data[step]
    data[path[-1]] = value


@pytest.mark.parametrize("name", [None, "another", ".mu['k']"], ids=str)
def test_a_relation_that_is_not_kept_is_refused(name: str | None):
    """The second moments are no longer related, or the one is said to be the other's first."""
    left, right = optax.adam(1e-3), optax.chain(optax.scale_by_adam(), optax.scale(-1e-3))
    data = json.loads(prove_equivalence(left, right, PARAMS).to_json())
    check(data, left, right, PARAMS)
    names = data["cases"][0]["symbols"][1]
    (second,) = (i for i, each in enumerate(names) if each and each.endswith(".nu['k']"))
    first = [each for each in names if each and name and each.endswith(name)]
    names[second] = first[0] if first else name
    with pytest.raises(CertificateError, match="after step"):
        check(data, left, right, PARAMS)


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
    with pytest.raises(equations.NotKnown, match="primitive bessel_i0e"):
        equations.run(program, [equations.balls(np.float32([1.0])[0:1].reshape(()))], exact=True)
    tx = optax.stateless(lambda grads, params: jax.tree.map(jax.scipy.special.i0e, grads))
    data = prove_equivalence(tx, tx, PARAMS).to_json()
    with pytest.raises(CertificateError, match="not checked: primitive bessel_i0e"):
        check(data, tx, tx, PARAMS)


def test_an_example_has_to_part_the_sides():
    left, right = optax.sgd(0.1), optax.sgd(0.2)
    data = json.loads(prove_equivalence(left, right, PARAMS).to_json())
    assert check(data, left, right, PARAMS).examples == 1
    assert check(data, left, left, PARAMS).examples == 0


def test_the_checker_imports_nothing_of_the_prover():
    for name in ("checker", "equations", "normal_forms"):
        tree = ast.parse((Path(checker.__file__).parent / f"{name}.py").read_text())
        modules = [n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        ours = ("equivalence_tests", "optax_bridge", "legacy_optim")
        own = [module for module in modules if module.startswith(ours)]
        assert all(".proof.certificate" in module for module in own)


def test_a_certificate_without_a_claim_has_nothing_to_check():
    left, right = optax.sgd(0.1), optax.sgd(0.2)
    proof = prove_equivalence(left, right, PARAMS)
    assert check(proof.to_json(), left, right, PARAMS).values == 0


@pytest.mark.parametrize(
    "function",
    [
        lambda x: jnp.linalg.norm(x) * jnp.tanh(x),
        lambda x: jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), x**3),
        lambda x: jnp.cumsum(x, axis=0) @ x.T,
        lambda x: jnp.concatenate([x[:1], jnp.flip(x, 1)]) / (2 + jnp.max(x)),
        lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y / (1 + i) + x, x),
        lambda x: jax.lax.while_loop(lambda y: jnp.sum(y * y) > 0.5, lambda y: y / 2, x),
        lambda x: jax.lax.cond(x[0, 0] > 0, jnp.exp, jnp.sin, x),
        lambda x: jnp.clip(jnp.round(4 * x), -1, 2).astype(int).astype(float) % 1.5 + jnp.mean(x),
        lambda x: (
            jnp.asarray(x)
            .at[jnp.array([1, 1]), jnp.array([0, 0])]
            .add(x[:, 1])
            .at[0, 1]
            .set(x[1, 1])
        ),
        lambda x: jnp.zeros(4).at[jnp.array([3, 0, 3])].max(x[0]).at[1].mul(2.0)[:3] * x,
        lambda x: x[jnp.argsort(x[:, 0])] + jnp.sort(x, axis=1) + x.reshape(-1)[jnp.argmax(x)],
        lambda x: jax.lax.top_k(x, 2)[0] + jax.lax.cummax(x, axis=1, reverse=True)[:, :2],
        lambda x: jnp.pad(jax.lax.dynamic_slice(x, (0, 1), (2, 2)), ((0, 0), (1, 0))) + jnp.tan(x),
        lambda x: jax.scipy.special.erf(x) + jnp.arctan(x) + jax.random.uniform(jax.random.key(0)),
        lambda x: jax.checkpoint(jnp.sin)(x) + jax.lax.stop_gradient(x) * jax.nn.relu(x).copy(),
        lambda x: optax.safe_norm(x, 0.1) + jax.lax.cumlogsumexp(x, axis=1),
    ],
    ids=[
        "norm",
        "where",
        "matrix",
        "slices",
        "fori",
        "while",
        "cond",
        "round",
        "scatter",
        "scatter max",
        "sort",
        "top",
        "pad",
        "functions",
        "calls",
        "logsumexp",
    ],
)
def test_programs_are_followed_as_jax_runs_them(function: Callable[[Any], Any]):
    x = np.asarray(np.random.default_rng(0).standard_normal((2, 3)), np.float32)
    program = jax.make_jaxpr(function)(x)
    (found,) = equations.run(program, [x], exact=False)
    np.testing.assert_allclose(found, function(x), rtol=1e-5, atol=1e-6)
    (exact,) = equations.run(program, [equations.balls(x)], exact=True)
    np.testing.assert_allclose(exact.astype(float), found, rtol=1e-5, atol=1e-6)


def test_bits_are_compared_where_they_are_claimed():
    left, right = legacy_optim.Momentum(0.1), optax_bridge.momentum(0.1)
    params = {"k": jnp.ones((2, 3), jnp.bfloat16)}
    proof = prove_equivalence(left, right, params)
    assert check(proof.to_json(), left, right, params, points=3).bits == 3 * 4 * 6

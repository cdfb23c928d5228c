import json
from collections.abc import Callable
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
from equivalence_tests.proof.certificate import equations

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

from collections.abc import Callable
from typing import Any

import optax
import pytest

from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.testing import assert_proved


def _chain(*pieces: Any) -> Callable[[], Any]:
    return lambda: optax.chain(*pieces)


def _weights(decay: float) -> Any:
    return optax.add_decayed_weights(decay)


# Each of Optax's aliases beside pieces that make the same.
ALIASES: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {
    "sgd": (lambda: optax.sgd(0.1), lambda: optax.scale(-0.1), IDENTICAL),
    "sgd nesterov": (
        lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
        _chain(optax.trace(0.9, nesterov=True), optax.scale_by_learning_rate(0.1)),
        IDENTICAL,
    ),
    "adam": (
        lambda: optax.adam(1e-3),
        _chain(optax.scale_by_adam(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "nadam": (
        lambda: optax.nadam(1e-3),
        _chain(optax.scale_by_adam(nesterov=True), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adamw": (
        lambda: optax.adamw(1e-3, weight_decay=0.1),
        _chain(optax.scale_by_adam(), optax.scale(-1e-3), _weights(-1e-4)),
        REALS,
    ),
    "adamax": (
        lambda: optax.adamax(1e-3),
        _chain(optax.scale_by_adamax(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adamaxw": (
        lambda: optax.adamaxw(1e-3, weight_decay=0.1),
        _chain(optax.scale_by_adamax(), _weights(0.1), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "amsgrad": (
        lambda: optax.amsgrad(1e-3),
        _chain(optax.scale_by_amsgrad(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adabelief": (
        lambda: optax.adabelief(1e-3),
        _chain(optax.scale_by_belief(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adadelta": (
        lambda: optax.adadelta(1e-3, weight_decay=0.1),
        _chain(_weights(0.1), optax.scale_by_adadelta(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "adagrad": (
        lambda: optax.adagrad(0.1),
        _chain(optax.scale_by_rss(), optax.scale(-0.05), optax.scale(2.0)),
        REALS,
    ),
    "lamb": (
        lambda: optax.lamb(1e-3, weight_decay=0.1),
        _chain(
            optax.scale_by_adam(eps=1e-6),
            _weights(0.1),
            optax.scale_by_trust_ratio(),
            optax.scale(-1e-3),
        ),
        IDENTICAL,
    ),
    "lars": (
        lambda: optax.lars(0.1, weight_decay=0.1),
        _chain(
            _weights(0.1),
            optax.scale_by_trust_ratio(trust_coefficient=1e-3),
            optax.scale(-0.1),
            optax.trace(0.9),
        ),
        IDENTICAL,
    ),
    "lion": (
        lambda: optax.lion(1e-3, weight_decay=0.1),
        _chain(optax.scale_by_lion(), _weights(0.1), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "noisy sgd": (
        lambda: optax.noisy_sgd(0.1, key=0),
        _chain(optax.add_noise(0.01, 0.55, 0), optax.scale(-0.1)),
        IDENTICAL,
    ),
    "radam": (
        lambda: optax.radam(1e-3),
        _chain(optax.scale_by_radam(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "rmsprop": (
        lambda: optax.rmsprop(1e-3),
        _chain(optax.scale_by_rms(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "rmsprop centered": (
        lambda: optax.rmsprop(1e-3, centered=True, momentum=0.9),
        _chain(optax.scale_by_stddev(), optax.scale(-1e-3), optax.trace(0.9)),
        IDENTICAL,
    ),
    "rprop": (
        lambda: optax.rprop(0.1),
        _chain(optax.scale_by_rprop(0.1), optax.scale(-1.0)),
        IDENTICAL,
    ),
    "sm3": (lambda: optax.sm3(0.1), _chain(optax.scale_by_sm3(0.9), optax.scale(-0.1)), IDENTICAL),
    "yogi": (
        lambda: optax.yogi(1e-3),
        _chain(optax.scale_by_yogi(), optax.scale(-1e-3)),
        IDENTICAL,
    ),
    "clipped": (
        lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)),
        _chain(optax.clip_by_global_norm(1.0), optax.scale(0.2), optax.scale(-0.5)),
        REALS,
    ),
    "injected": (
        lambda: optax.inject_hyperparams(optax.adam)(1e-3),
        lambda: optax.adam(1e-3),
        REALS,
    ),
    "partition": (
        lambda: optax.partition({"x": optax.adam(0.1), "y": optax.sgd(0.1)}, {"k": "x", "b": "y"}),
        lambda: optax.partition(
            {"x": optax.chain(optax.scale_by_adam(), optax.scale(-0.1)), "y": optax.scale(-0.1)},
            {"k": "x", "b": "y"},
        ),
        IDENTICAL,
    ),
    "schedule": (
        lambda: optax.adam(optax.cosine_decay_schedule(0.1, 100)),
        _chain(
            optax.scale_by_adam(),
            optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 100)),
        ),
        IDENTICAL,
    ),
}


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_its_pieces(name: str):
    left, right, verdict = ALIASES[name]
    assert_proved(left(), right(), verdict)

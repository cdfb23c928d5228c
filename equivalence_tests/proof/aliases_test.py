from typing import Any

import optax
import pytest

from equivalence_tests.proof.result import IDENTICAL, REALS
from equivalence_tests.proof.testing import assert_proved

DECAY = optax.add_decayed_weights(0.1)
STEP = optax.scale(-1e-3)
CLIP = optax.clip_by_global_norm(1.0)
COSINE = optax.cosine_decay_schedule(0.1, 100)
LABELS = {"k": "x", "b": "y"}


def _parts(*adam: Any) -> Any:
    return optax.partition({"x": optax.chain(*adam), "y": optax.scale(-0.1)}, LABELS)


# Each of Optax's aliases, and pieces that make the same.
ALIASES: dict[str, tuple[Any, list[Any]]] = {
    "sgd": (optax.sgd(0.1), [optax.scale(-0.1)]),
    "sgd nesterov": (
        optax.sgd(0.1, momentum=0.9, nesterov=True),
        [optax.trace(0.9, nesterov=True), optax.scale_by_learning_rate(0.1)],
    ),
    "adam": (optax.adam(1e-3), [optax.scale_by_adam(), STEP]),
    "nadam": (optax.nadam(1e-3), [optax.scale_by_adam(nesterov=True), STEP]),
    "adamw": (
        optax.adamw(1e-3, weight_decay=0.1),
        [optax.scale_by_adam(), STEP, optax.add_decayed_weights(-1e-4)],
    ),
    "adamax": (optax.adamax(1e-3), [optax.scale_by_adamax(), STEP]),
    "adamaxw": (optax.adamaxw(1e-3, weight_decay=0.1), [optax.scale_by_adamax(), DECAY, STEP]),
    "amsgrad": (optax.amsgrad(1e-3), [optax.scale_by_amsgrad(), STEP]),
    "adabelief": (optax.adabelief(1e-3), [optax.scale_by_belief(), STEP]),
    "adadelta": (optax.adadelta(1e-3, weight_decay=0.1), [DECAY, optax.scale_by_adadelta(), STEP]),
    "adagrad": (optax.adagrad(0.1), [optax.scale_by_rss(), optax.scale(-0.05), optax.scale(2.0)]),
    "lamb": (
        optax.lamb(1e-3, weight_decay=0.1),
        [optax.scale_by_adam(eps=1e-6), DECAY, optax.scale_by_trust_ratio(), STEP],
    ),
    "lars": (
        optax.lars(0.1, weight_decay=0.1),
        [
            DECAY,
            optax.scale_by_trust_ratio(trust_coefficient=1e-3),
            optax.scale(-0.1),
            optax.trace(0.9),
        ],
    ),
    "lion": (optax.lion(1e-3, weight_decay=0.1), [optax.scale_by_lion(), DECAY, STEP]),
    "noisy sgd": (optax.noisy_sgd(0.1, key=0), [optax.add_noise(0.01, 0.55, 0), optax.scale(-0.1)]),
    "radam": (optax.radam(1e-3), [optax.scale_by_radam(), STEP]),
    "rmsprop": (optax.rmsprop(1e-3), [optax.scale_by_rms(), STEP]),
    "rmsprop centered": (
        optax.rmsprop(1e-3, centered=True, momentum=0.9),
        [optax.scale_by_stddev(), STEP, optax.trace(0.9)],
    ),
    "rprop": (optax.rprop(0.1), [optax.scale_by_rprop(0.1), optax.scale(-1.0)]),
    "sm3": (optax.sm3(0.1), [optax.scale_by_sm3(0.9), optax.scale(-0.1)]),
    "yogi": (optax.yogi(1e-3), [optax.scale_by_yogi(), STEP]),
    "clipped": (optax.chain(CLIP, optax.sgd(0.1)), [CLIP, optax.scale(0.2), optax.scale(-0.5)]),
    "injected": (optax.inject_hyperparams(optax.adam)(1e-3), [optax.adam(1e-3)]),
    "partition": (
        optax.partition({"x": optax.adam(0.1), "y": optax.sgd(0.1)}, LABELS),
        [_parts(optax.scale_by_adam(), optax.scale(-0.1))],
    ),
    "schedule": (
        optax.adam(COSINE),
        [optax.scale_by_adam(), optax.scale_by_learning_rate(COSINE)],
    ),
}
ROUNDED = {"adamw", "adagrad", "clipped", "injected"}  # in another order


@pytest.mark.parametrize("name", ALIASES)
def test_an_alias_is_its_pieces(name: str):
    alias, pieces = ALIASES[name]
    assert_proved(alias, optax.chain(*pieces), REALS if name in ROUNDED else IDENTICAL)

"""What has no equal is refused with a reason."""

from typing import Any

import pytest

import legacy_optim
from optax_bridge.correspondence import UnsupportedSetting
from optax_bridge.legacy import from_legacy


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (lambda: legacy_optim.Adam(), "per call"),
        (lambda: legacy_optim.Adafactor(0.1, epsilon2=0.5), "epsilon2"),
        (lambda: legacy_optim.Adagrad(0.1), "eps outside the root"),
        (lambda: legacy_optim.LARS(0.1, weight_decay=0.1), "denominator"),
    ],
    ids=["no-rate", "epsilon2", "adagrad", "lars-decay"],
)
def test_settings_without_a_stock_equal_say_so(definition: Any, message: str):
    with pytest.raises(UnsupportedSetting, match=message):
        from_legacy(definition(), exact=False)

"""What the guide shows of a training that left PyTorch is what it does today."""

import numpy as np
import pytest

from migration_guide import from_pytorch
from migration_guide.from_pytorch import HALF

RECORDED = from_pytorch.recorded_losses()


def test_moved_is_the_same_but_for_rounding_and_without_moments_is_not(monkeypatch):
    assert {len(values) for values in RECORDED.values()} == {from_pytorch.STOP - HALF}
    scale = max(RECORDED["PyTorch"])
    for way in ("Linen", "NNX"):
        assert max(from_pytorch.apart(RECORDED, way)) < 1e-5 * scale
    assert max(from_pytorch.apart(RECORDED, "without moments")) > 1e-3 * scale
    for way, values in RECORDED.items():
        farthest = max(map(abs, np.subtract(values, RECORDED["PyTorch"])))
        assert f"| {way} | {values[-1]:.6f} | {farthest:.1e} |" in from_pytorch.table()
    drawn = []
    monkeypatch.setattr(from_pytorch, "stages_figure", lambda lines, *_: drawn.append(lines) or "")
    from_pytorch.pictures()
    assert drawn[0] == {"moved": RECORDED["Linen"], "without moments": RECORDED["without moments"]}
    assert max(drawn[1]["moved"]) < 1e-5 * scale < max(drawn[1]["without moments"])


def test_the_recorded_losses_are_those_of_today(tmp_path):
    """The first steps after the move, from the checkpoint that PyTorch wrote half-way."""
    pytest.importorskip("torch")
    losses = from_pytorch.go_on(tmp_path, HALF + 3)
    for way, values in losses.items():
        expected = RECORDED[way][:3]
        np.testing.assert_allclose(values, expected, rtol=2e-4 if "moments" in way else 2e-5)

"""What the guide shows of trainings that left PyTorch is what they do today."""

import json
import re

import numpy as np
import pytest

from migration_guide import from_pytorch
from migration_guide.from_pytorch import HALF, HERE

RECORDED = from_pytorch.recorded_losses()


@pytest.mark.parametrize("name", from_pytorch.TITLES)
def test_moved_is_the_same_but_for_rounding_and_without_moments_is_not(name):
    losses = RECORDED[name]
    assert {len(each) for each in losses.values()} == {from_pytorch.STOP - HALF}
    scale = max(losses["PyTorch"])
    for way in ("Linen", "NNX"):
        assert max(from_pytorch.apart(losses, way)) < 1e-5 * scale
    assert max(from_pytorch.apart(losses, "without moments")) > 1e-3 * scale


def test_the_pictures_have_both_colours_of_a_page():
    pictures = from_pytorch.pictures()
    assert pictures.count("<svg") == 6
    assert not re.search(r'fill="(?:#000|black|white|#fff)', pictures)
    assert "currentColor" in pictures


def test_the_recorded_losses_are_those_of_today(tmp_path):
    """The first steps after the move, from the checkpoint that PyTorch wrote half-way."""
    pytest.importorskip("torch")
    losses = from_pytorch.go_on("digits", HERE / "digits.pt", tmp_path, HALF + 3)
    for way, values in losses.items():
        expected = RECORDED["digits"][way][:3]
        np.testing.assert_allclose(values, expected, rtol=2e-4 if "moments" in way else 2e-5)


def test_the_names_files_are_drafts_that_somebody_has_looked_at():
    texts = [file.read_text(encoding="utf-8") for file in HERE.glob("*.toml")]
    assert len(texts) == 3
    assert not [text for text in texts if "unsure" in text]
    assert json.loads(from_pytorch.RESULTS.read_text(encoding="utf-8")).keys() == RECORDED.keys()

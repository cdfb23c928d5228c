"""Axes by name, there and back."""

import numpy as np
import pytest

from optax_bridge.torch.checkpoints.rearrangement import Rearrangement


@pytest.mark.parametrize(
    ("text", "sizes", "shape", "expected"),
    [
        ("o i -> i o", {}, (2, 3), (3, 2)),
        ("o i h w -> h w i o", {}, (2, 3, 4, 5), (4, 5, 3, 2)),
        ("(n h d) i -> n i h d", {"n": 3, "h": 2}, (12, 5), (3, 5, 2, 2)),
        ("o (c s) -> (s c) o", {"c": 4}, (3, 8), (8, 3)),
    ],
)
def test_there_and_back(text, sizes, shape, expected):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    swap = Rearrangement.parse(text, sizes)
    assert swap(array).shape == expected
    np.testing.assert_array_equal(swap.inverse(swap(array)), array)


def test_a_flatten_of_channels_first_becomes_one_of_channels_last():
    image, kernel = np.random.default_rng(0).normal(size=(2, 3, 4)), np.arange(48.0).reshape(2, 24)
    swap = Rearrangement.parse("o (c s) -> (s c) o", {"c": 2})
    last = image.transpose(1, 2, 0)
    np.testing.assert_allclose(last.ravel() @ swap(kernel), kernel @ image.ravel())


@pytest.mark.parametrize(
    ("text", "sizes", "expected"),
    [
        ("o i", {}, "both sides"),
        ("o i -> i p", {}, "both sides"),
        ("o o -> o o", {}, "each once"),
        ("o i -> i o", {"h": 2}, "not of h"),
        ("O i -> i O", {}, "lower case"),
    ],
)
def test_what_is_no_rearrangement_is_said(text, sizes, expected):
    with pytest.raises(ValueError, match=expected):
        Rearrangement.parse(text, sizes)


@pytest.mark.parametrize(
    ("text", "sizes", "shape", "expected"),
    [
        ("o i -> i o", {}, (2,), "2 axes"),
        ("(h d) i -> i h d", {}, (4, 3), "size of h or d"),
        ("(h d) i -> i h d", {"h": 3}, (4, 3), "h d in 4"),
    ],
)
def test_an_array_without_these_axes_is_refused(text, sizes, shape, expected):
    with pytest.raises(ValueError, match=expected):
        Rearrangement.parse(text, sizes)(np.zeros(shape))

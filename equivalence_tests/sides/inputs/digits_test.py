"""The data of real training is what its source has."""

import numpy as np
import pytest

from equivalence_tests.sides.inputs import digits


def test_the_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    pixels, labels = datasets.load_digits(return_X_y=True)
    images, numbers = digits.digits()
    assert images.dtype == np.float32 and numbers.dtype == np.int32
    np.testing.assert_array_equal(images.reshape(-1, 64), pixels.astype(np.float32) / 16.0)
    np.testing.assert_array_equal(numbers, labels)

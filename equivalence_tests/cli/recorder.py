"""`optax-bridge recorder`: the file that records a training run of any framework."""

from importlib import resources


def recorder() -> None:
    """Print a file that records a training run, for `optax-bridge replay`.

    The file needs only NumPy and Python 3.6 or later, and works with PyTorch, flax.optim,
    TensorFlow, Keras, Optax and any other library of arrays. Copy it next to the training program.

    Examples:
    - `optax-bridge recorder > recorder.py`
    """
    file = resources.files("equivalence_tests.recordings").joinpath("recorder.py")
    print(file.read_text(encoding="utf-8"), end="")

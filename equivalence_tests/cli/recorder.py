"""`optax-bridge recorder`: the file that records a training run of any framework."""

from importlib import resources


def recorder() -> None:
    """Print a file that records a training run, for `optax-bridge replay`.

    It needs NumPy alone and Python 3.6 or later, and works beside PyTorch, flax.optim, TensorFlow,
    Keras, Optax and whatever else has arrays. Copy it beside the training program.

    Examples:
    - `optax-bridge recorder > recorder.py`
    """
    file = resources.files("equivalence_tests.recordings").joinpath("recorder.py")
    print(file.read_text(encoding="utf-8"), end="")

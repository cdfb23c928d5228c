"""`optax-bridge recorder`: the file that records a training run of any framework."""

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from equivalence_tests.output_files import write_text


def recorder(
    output: Annotated[
        Path | None, typer.Option(help="Write it to this file; standard output unless given.")
    ] = None,
) -> None:
    """Print a file that records a training run, for `optax-bridge replay`.

    It needs NumPy alone and Python 3.6 or later, and works beside PyTorch, flax.optim, TensorFlow,
    Keras, Optax and whatever else has arrays. Copy it beside the training program.

    Examples:
    - `optax-bridge recorder > recorder.py`
    """
    file = resources.files("equivalence_tests.recordings").joinpath("recorder.py")
    text = file.read_text(encoding="utf-8")
    if output is None:
        print(text, end="")
    else:
        write_text(output, text)

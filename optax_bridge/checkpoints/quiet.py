"""Orbax and absl log several lines at each restore; here they do only where asked to."""

import contextlib
import logging
from collections.abc import Generator


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Keeps what Orbax tells about its work from being logged; errors are, and come as exceptions.

    A program that wants the lines says so by `absl.logging.set_verbosity(absl.logging.INFO)`.
    """
    logger = logging.getLogger("absl")
    if logger.level in (logging.INFO, logging.DEBUG):
        yield
        return
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)

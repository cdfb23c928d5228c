"""A line that Flax logs in every program that imports its checkpoints."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import LogRecord

_NOTE = "Tensorflow library not found"


def without_note_on_tensorflow() -> Callable[[], object]:
    """Keeps Flax from logging that TensorFlow is not there, which only gs:// folders need."""
    try:
        from absl import logging  # late: not every program that is run imports it
    except ImportError:
        return lambda: None
    logger = logging.get_absl_logger()
    if _is_other in logger.filters:
        return lambda: None
    logger.addFilter(_is_other)
    return lambda: logger.removeFilter(_is_other)


def _is_other(record: "LogRecord") -> bool:
    return _NOTE not in str(record.msg)

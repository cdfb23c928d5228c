"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .convert import convert_file as convert_file
from .errors import CheckpointError as CheckpointError
from .errors import ConvertedWarning as ConvertedWarning
from .errors import LeftOverWarning as LeftOverWarning
from .read import Read as Read
from .read import read_checkpoint as read_checkpoint
from .restore import from_bytes as from_bytes
from .restore import from_state_dict as from_state_dict
from .restore import restore_checkpoint as restore_checkpoint

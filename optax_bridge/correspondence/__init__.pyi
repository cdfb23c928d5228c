"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .choice import Choice as Choice
from .choice import choose_recipe as choose_recipe
from .claim import Claim as Claim
from .claim import Verdict as Verdict
from .entry import Case as Case
from .entry import Entry as Entry
from .entry import UnsupportedSetting as UnsupportedSetting
from .recipe import Call as Call
from .table import ENTRIES as ENTRIES
from .table import ORIGINS as ORIGINS
from .table import TORCH as TORCH
from .table import Described as Described
from .table import Table as Table
from .table import all_entries as all_entries
from .table import describe as describe
from .table import entries_by_class as entries_by_class
from .table import entry_of as entry_of
from .table import names_of_entries as names_of_entries
from .table import origin_of as origin_of

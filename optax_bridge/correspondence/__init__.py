"""The correspondence: one entry for each legacy optimizer, one file for each entry.

Everything that knows about single optimizers reads it here: `from_legacy`, the suite, checkpoint
conversion, the codemod, the guide's tables, `optax-bridge recipe`.
"""

from optax_bridge.correspondence.choice import Choice as Choice
from optax_bridge.correspondence.choice import choose_recipe as choose_recipe
from optax_bridge.correspondence.claim import Claim as Claim
from optax_bridge.correspondence.claim import Verdict as Verdict
from optax_bridge.correspondence.entry import Case as Case
from optax_bridge.correspondence.entry import Entry as Entry
from optax_bridge.correspondence.entry import UnsupportedSetting as UnsupportedSetting
from optax_bridge.correspondence.recipe import Call as Call
from optax_bridge.correspondence.table import ENTRIES as ENTRIES
from optax_bridge.correspondence.table import Described as Described
from optax_bridge.correspondence.table import describe as describe
from optax_bridge.correspondence.table import entries_by_class as entries_by_class
from optax_bridge.correspondence.table import entry_of as entry_of
from optax_bridge.correspondence.table import names_of_entries as names_of_entries

"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .compare.comparison import Verdict as Verdict
from .compare.nature import Nature as Nature
from .equivalence import check_equivalence as check_equivalence
from .report.pair import Report as Report
from .sides.adapt import EquivalenceError as EquivalenceError

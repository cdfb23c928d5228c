"""Evidence that optimizers train alike: legacy, exact and stock ones, or any two of one's own."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equivalence_tests.adapt import EquivalenceError as EquivalenceError
    from equivalence_tests.equivalence import check_equivalence as check_equivalence
    from equivalence_tests.nature import Nature as Nature
    from equivalence_tests.pair_report import Report as Report
    from equivalence_tests.proof import Proof as Proof
    from equivalence_tests.proof import ProofError as ProofError
    from equivalence_tests.proof import prove_equivalence as prove_equivalence
    from optax_bridge.correspondence import Verdict as Verdict

_HOME = {
    "EquivalenceError": "equivalence_tests.adapt",
    "Nature": "equivalence_tests.nature",
    "Proof": "equivalence_tests.proof",
    "ProofError": "equivalence_tests.proof",
    "Report": "equivalence_tests.pair_report",
    "Verdict": "optax_bridge.correspondence",
    "check_equivalence": "equivalence_tests.equivalence",
    "prove_equivalence": "equivalence_tests.proof",
}


def __getattr__(name: str) -> Any:
    # The pytest plugin lives in this package and is loaded in every project of an environment:
    # it must not import JAX, whose flags that project may yet have to set.
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

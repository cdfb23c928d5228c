"""Proofs that two optimizers are the same for all inputs, and certificates of them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from equivalence_tests.proof.bounds import rounding_bound as rounding_bound
    from equivalence_tests.proof.checker import CertificateError as CertificateError
    from equivalence_tests.proof.checker import check as check
    from equivalence_tests.proof.errors import ProofError as ProofError
    from equivalence_tests.proof.prover import prove_equivalence as prove_equivalence
    from equivalence_tests.proof.result import Proof as Proof
    from equivalence_tests.proof.unknown import unknown_schedule as unknown_schedule

_HOME = {
    "CertificateError": "checker",
    "Proof": "result",
    "ProofError": "errors",
    "check": "checker",
    "prove_equivalence": "prover",
    "rounding_bound": "bounds",
    "unknown_schedule": "unknown",
}


def __getattr__(name: str) -> Any:
    # The command line imports this package for its options alone.
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

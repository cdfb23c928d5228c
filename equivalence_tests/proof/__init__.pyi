"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .errors import ProofError as ProofError
from .prover import prove_equivalence as prove_equivalence
from .reading.symbols import unknown_schedule as unknown_schedule
from .result import Proof as Proof

"""The public names and where each is; `__init__.py` imports from here what is asked for."""

from .compare.comparison import Verdict as Verdict
from .compare.judgement import Nature as Nature
from .pair.equivalence import check_equivalence as check_equivalence
from .pair.report import Report as Report
from .proof.errors import ProofError as ProofError
from .proof.prover import prove_equivalence as prove_equivalence
from .proof.result import Proof as Proof
from .recordings.format import RecordingError as RecordingError
from .recordings.replay import Replay as Replay
from .recordings.replay import assert_replays as assert_replays
from .recordings.replay import replay as replay
from .sides.frameworks import torch_side as torch_side
from .sides.side import EquivalenceError as EquivalenceError

"""`check`: a certificate against two sides, which are traced to programs for the checker."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from equivalence_tests.proof.certificate.checker import Checked, Programs, check_programs
from equivalence_tests.proof.reading.sides import MakeSide, as_functions, check_inputs, trace_side
from equivalence_tests.sides.adapt import SideLike
from optax_bridge.metadata.trees import Params


def check(
    certificate: str | Mapping[str, Any],
    left: SideLike | MakeSide,
    right: SideLike | MakeSide,
    params: Params,
    *,
    hyper_params: Mapping[str, float] | None = None,
    points: int = 2,
    steps: int = 3,
    shapes: int = 3,
    seed: int = 0,
) -> Checked:
    """Checks the certificate of a proof, `proof.to_json()`, against both sides.

    Args:
      certificate: as text or as data.
      left: the left side, as it was handed to the prover.
      right: the right side.
      params: as they were handed to the prover.
      hyper_params: as they were handed to the prover.
      points: random inputs for each case.
      steps: steps from each.
      shapes: other shapes to try where the proof is for these too, 3 at most.
      seed: of the inputs.

    Returns:
      What was checked.

    Raises:
      CertificateError: the programs do not compute what the certificate says, or hold a primitive
        that the checker does not know.
    """
    data = json.loads(certificate) if isinstance(certificate, str) else certificate
    pair = as_functions((left, right), hyper_params)

    def trace(fixed: Mapping[str, float], shape: tuple[int, ...] | None) -> Programs:
        free = {k: v for k, v in (hyper_params or {}).items() if k not in fixed}
        inputs = check_inputs(params, free, fixed)
        if shape is not None:
            leaves = [jax.ShapeDtypeStruct(shape, leaf.dtype) for leaf in inputs.shapes]
            inputs = replace(inputs, params=jax.tree.structure(params).unflatten(leaves))
        ours, theirs = data["names"]
        sides = trace_side(pair[0], inputs, ours), trace_side(pair[1], inputs, theirs)
        return Programs(sides, inputs.paths, inputs.shapes, inputs.numbers)

    return check_programs(data, trace, points, steps, shapes, seed)

# pyright: strict
"""`check`: a certificate against two sides, which are traced to programs for the checker."""

import json
from collections.abc import Mapping
from typing import Any

import jax

from equivalence_tests.proof.certificate.checker import Checked, Programs, check_programs
from equivalence_tests.proof.reading.traced_sides import MakeSide, inputs, traced
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
    pair: tuple[MakeSide, MakeSide] = (left, right)
    if hyper_params is None:
        pair = (lambda hp: left), (lambda hp: right)

    def trace(fixed: Mapping[str, float], shape: tuple[int, ...] | None) -> Programs:
        free = {k: v for k, v in (hyper_params or {}).items() if k not in fixed}
        given = inputs(params, free, fixed)
        if shape is not None:
            given = inputs(
                jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(shape, leaf.dtype), given.params),
                free,
                fixed,
            )
        ours, theirs = data["names"]
        sides = traced(pair[0], given, ours), traced(pair[1], given, theirs)
        return Programs(sides, given.paths, given.shapes, given.numbers)

    return check_programs(data, trace, points, steps, shapes, seed)

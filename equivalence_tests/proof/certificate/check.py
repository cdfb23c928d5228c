"""`check`: a certificate against two sides, which are traced to programs for the checker."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace

import jax
import numpy as np

from equivalence_tests.proof.certificate.checker import Checked, check_programs
from equivalence_tests.proof.certificate.programs import Programs, Side
from equivalence_tests.proof.certificate.statement import reading
from equivalence_tests.proof.dtypes import Json
from equivalence_tests.proof.reading.sides import (
    Inputs,
    MakeSide,
    as_functions,
    check_inputs,
    trace_side,
)
from equivalence_tests.sides.adapt import SideLike
from equivalence_tests.sides.precision import float64
from optax_bridge.metadata.trees import Params


def check(
    certificate: str | Json,
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
      left: the left side that the prover got.
      right: the right side that it got.
      params: the parameters that it got.
      hyper_params: the hyper-parameters that it got.
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
    with reading():
        data = json.loads(certificate) if isinstance(certificate, str) else certificate
    pair = as_functions((left, right), hyper_params)

    def side(make: MakeSide, inputs: Inputs, name: str) -> Side:
        program = trace_side(make, inputs, name)
        return Side(program.start, program.step, program.paths, program.asked)

    def trace(
        fixed: Mapping[str, float], shape: tuple[int, ...] | None = None, wide: bool = False
    ) -> Programs:
        free = {k: v for k, v in (hyper_params or {}).items() if k not in fixed}
        inputs = check_inputs(params, free, fixed)
        leaves = [
            jax.ShapeDtypeStruct(
                leaf.shape if shape is None else shape, np.float64 if wide else leaf.dtype
            )
            for leaf in inputs.shapes
        ]
        inputs = replace(inputs, params=jax.tree.structure(params).unflatten(leaves))
        ours, theirs = data["names"]
        with float64() if wide else contextlib.nullcontext():
            sides = side(pair[0], inputs, ours), side(pair[1], inputs, theirs)
        return Programs(sides, inputs.paths, inputs.shapes, inputs.numbers)

    return check_programs(data, trace, points, steps, shapes, seed)

"""`python -m equivalence_tests.suite.record_seen`: measures what claims of rounding come to.

It runs the suite's checks on odd shapes, 100 steps each, and writes what entries then say.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from equivalence_tests.output_files import write_text
from equivalence_tests.suite.case import SYNTHETIC, Result
from equivalence_tests.suite.checks import checks, groups, run
from optax_bridge.correspondence import Verdict, seen


def measured(results: Iterable[Result]) -> dict[str, float]:
    """Key of a claim -> the largest distance under it, in ULP to two digits."""
    largest: dict[str, float] = {}
    for result in results:
        claim, found = result.claim, result.comparison
        if claim is None or found is None or claim.verdict is not Verdict.ROUNDING:
            continue
        largest[claim.key] = max(largest.get(claim.key, 0.0), float(f"{found.ulp:.2g}"))
    return dict(sorted(largest.items()))


def main() -> None:
    """Writes the file that the correspondence reads."""
    chosen = [check for check in checks() if check.problem == SYNTHETIC]
    results = [result for group in groups(chosen) for result in run(group)]
    if broken := [str(result.case) for result in results if not result.held]:
        sys.exit(f"not recorded, these claims do not hold: {', '.join(broken)}")
    file = Path(seen.__file__).with_name(seen.FILE)
    write_text(file, json.dumps(measured(results), indent=1) + "\n")
    print(f"{file} written")


if __name__ == "__main__":
    main()

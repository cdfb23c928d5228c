"""`python -m tools.record_seen`: measures by how much claims of rounding round.

Runs the suite's checks on odd shapes and writes the file that entries read their figures from.
"""

import json
import sys
from pathlib import Path

from equivalence_tests.output_files import write_text
from equivalence_tests.suite.case import SYNTHETIC, groups, largest_ulp_by_claim
from equivalence_tests.suite.checks import checks, run
from optax_bridge.correspondence import claim


def main() -> None:
    """Writes the file that the correspondence reads."""
    chosen = [check for check in checks() if check.problem == SYNTHETIC]
    results = [result for group in groups(chosen) for result in run(group)]
    if broken := [str(result.case) for result in results if not result.held]:
        sys.exit(f"not recorded, these claims do not hold: {', '.join(broken)}")
    file = Path(claim.__file__).with_name(claim.FILE)
    write_text(file, json.dumps(largest_ulp_by_claim(results), indent=1) + "\n")
    print(f"{file} written")


if __name__ == "__main__":
    main()

"""Records what the corpus prints on the genuine flax 0.5.3.

    reference/bin/python migration_guide/corpus/record.py

The environment is that of `equivalence_tests/reference/requirements.txt`, Python 3.10.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import worker  # noqa: E402


def main() -> int:
    """Runs every program and writes `recorded.json`; returns 1 if one fails."""
    worker.lend_old_names()
    recorded, failed = {}, []
    for path in sorted((HERE / "programs").iterdir()):
        if path.name.startswith("__"):
            continue
        text = worker.output_of(str(path), "genuine")
        try:
            recorded[path.stem] = json.loads(text)
        except ValueError:
            failed.append(path.stem)
            print(path.stem, text, file=sys.stderr)
    text = json.dumps(recorded, indent=1, sort_keys=True)
    (HERE / "recorded.json").write_text(f"{text}\n", encoding="utf-8")
    print(f"{len(recorded)} programs recorded")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

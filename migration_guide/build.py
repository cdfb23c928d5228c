# pyright: strict
"""Builds the guide, running every snippet: `python -m migration_guide.build`.

python -m migration_guide.build
python -m migration_guide.build --output /tmp/guide
python -m migration_guide.build --without-cells    # a minute: menus, links and docstrings alone

What it writes is static: any host serves it, and a browser opens it from the disk.
"""

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from migration_guide.cells import SOURCE

NEEDS = {"sphinx": "sphinx", "myst_nb": "myst-nb", "furo": "furo", "pytest": "pytest"}
MISUSE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the pages; warnings are errors, and so is a snippet that raises."""
    parser = argparse.ArgumentParser(
        prog="python -m migration_guide.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Path(__file__).parents[1] / "docs" / "guide"
    parser.add_argument("--output", type=Path, default=default, help=f"folder (default {default})")
    parser.add_argument("--without-cells", action="store_true", help="run no snippet")
    options = parser.parse_args(arguments)
    output = options.output
    missing = [name for module, name in NEEDS.items() if importlib.util.find_spec(module) is None]
    if missing:
        print(
            f"The guide is built with {', '.join(NEEDS.values())}; not installed here: "
            f"{', '.join(missing)}. Run: pip install '.[guide]'",
            file=sys.stderr,
        )
        return MISUSE
    from sphinx.cmd.build import build_main  # slow to import, and not always installed

    # A fresh environment: what the pages show must have run against today's code.
    flags = ["--fail-on-warning", "--keep-going", "--fresh-env"]
    if options.without_cells:
        flags += ["--define", "nb_execution_mode=off"]
    with tempfile.TemporaryDirectory() as doctrees:
        failed = build_main([*flags, "--doctree-dir", doctrees, str(SOURCE), str(output)])
    if not failed:
        print(f"open {output / 'index.html'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

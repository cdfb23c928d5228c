"""Reading a release off its files and by importing it: both see the same, but for some."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.gone_names import source

EXPECTED = Path(__file__).parent / "testdata" / "small.txt"
PACKAGE = {
    "__init__.py": "from small._private import *\nfrom functools import partial\nimport os\n"
    "from small import shown as other\n",
    "_private.py": "from contextlib import contextmanager\nfrom dataclasses import dataclass\n"
    "def f(a, *, b=1, _c=2, **d): pass\n"
    "class Base:\n    x: int\n    def go(self, much): pass\n"
    "class Sub(Base):\n    y = 2\n    def __init__(self, z): self.z = z\n"
    "    @property\n    def shape(self): pass\n    @staticmethod\n    def make(size): pass\n"
    "    def put(self, much): pass\n"
    "@dataclass\nclass Data:\n    size: int\n    depth: int = 2\n"
    "@contextmanager\ndef scope(n): yield\nlimit: int = 3\nleft, right = 1, 2\n"
    "def passed_on(f): return f\nsame = passed_on(f)\n"
    "class _Hidden:\n    def shared(self, s): pass\nclass Open(_Hidden): pass\n",
    "warns.py": "from small._private import Sub, f\nmade = made_p = Sub(1)\n"
    "try:\n    from small._private import f as tried\nexcept ImportError:\n    tried = None\n"
    "import small._private as p\nnamed = p.Sub.make\nif p:\n    with open(__file__): inside = p.f\n"
    "_deprecations = {'old': ('use f', f), 'lost': ('it is gone', None)}\n",
    "tests.py": "never = 1\n",
    "warns_test.py": "never = 1\n",
    "more/__init__.py": "def some(a, /, b, *, c): pass\nclass _DeviceArray: pass\n"
    "__deprecated_attrs__ = {'late': 1}\ndef __getattr__(name):\n"
    "    if name == 'late': return some\n    raise AttributeError\n",
    "broken.py": "import not_installed_here\nlost = 1\n",
    "shown.py": "import json\nfrom small._private import f as g\n"
    "def own(q): return json\n_hidden = 1\nvalue = 3\ndel value\n",
    # Relative imports of a package and of a module; names for type checkers, of other branches.
    "below/__init__.py": "from typing import TYPE_CHECKING\nfrom ..shown import own\n"
    "from .deep import g as h, near\nfrom . import deep as too\n"
    "if TYPE_CHECKING:\n    from .deep import typed\nelse:\n    def at_run(r): pass\n",
    "below/deep.py": "from ..shown import g\nfrom . import near\ndef typed(t): pass\n",
    "below/near.py": "try:\n    from .deep import typed\nexcept ImportError:\n    pass\n",
}


def test_both_ways_of_reading_see_what_is_recorded(tmp_path: Path):
    """Run as a program, this file prints the lines of `testdata/small.txt`."""
    assert lines(tmp_path) == EXPECTED.read_text(encoding="utf-8").splitlines()


def lines(folder: Path) -> list[str]:
    """Each name of the package, as its files have it and as an import does."""
    for name, text in PACKAGE.items():
        path = folder / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    imported = json.loads(
        subprocess.check_output(
            [sys.executable, str(Path(source.__file__).with_name("imported.py")), "small"],
            env={**os.environ, "PYTHONPATH": str(folder)},
        )
    )
    ways = {"files": source.Release(folder, "small").snapshot(), "import": imported}
    return [
        f"{way} {module}: {name} {json.dumps(entry, sort_keys=True)}"
        for way, snapshot in ways.items()
        for module, names in sorted(snapshot.items())
        for name, entry in sorted(names.items())
    ]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        print(*lines(Path(scratch)), sep="\n")

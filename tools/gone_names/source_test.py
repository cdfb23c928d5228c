"""Reading a release off its files and by importing it: both see the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tools.gone_names import source

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
    "shown.py": "import json\nfrom small._private import f as g\n"
    "def own(q): return json\n_hidden = 1\nvalue = 3\ndel value\n",
    # Relative imports of a package and of a module; names for type checkers, of other branches.
    "below/__init__.py": "from typing import TYPE_CHECKING\nfrom ..shown import own\n"
    "from .deep import g as h, near\nfrom . import deep as too\n"
    "if TYPE_CHECKING:\n    from .deep import typed\nelse:\n    def at_run(r): pass\n",
    "below/deep.py": "from ..shown import g\nfrom . import near\ndef typed(t): pass\n",
    "below/near.py": "try:\n    from .deep import typed\nexcept ImportError:\n    pass\n",
}


def test_both_ways_of_reading_see_the_same(tmp_path: Path):
    (tmp_path / "small" / "below").mkdir(parents=True)
    for name, text in PACKAGE.items():
        (tmp_path / "small" / name).write_text(text, encoding="utf-8")
    read = source.Release(tmp_path, "small").snapshot()
    imported = json.loads(
        subprocess.check_output(
            [sys.executable, str(Path(source.__file__).with_name("imported.py")), "small"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
    )
    modules = {"below", "shown", "warns"}
    assert read["small"].keys() - modules == imported["small"].keys() - modules
    assert read["small"].keys() >= {"f", "Base", "Sub", "partial", "other", "right", *modules}
    assert all(read["small"][name] == {} for name in ("limit", "left", "scope"))
    values = {"Sub", "made", "made_p", "tried", "named", "inside"}
    assert read["small.warns"].keys() == {"f", "old", "p", *values}
    assert read["small.warns"]["made_p"] == {}
    assert read["small"]["f"] == {"keywords": ["a", "b"]}
    attributes = {"make": ["size"], "put": ["much"], "shape": [], "y": []}
    assert read["small"]["Sub"] == {"keywords": ["z"], "attributes": attributes}
    assert read["small.warns"]["tried"] == read["small"]["same"] == {"keywords": ["a", "b"]}
    assert read["small.warns"]["made"] == {"attributes": {**attributes, "z": []}}
    assert read["small.shown"] == {"g": {"keywords": ["a", "b"]}, "own": {"keywords": ["q"]}}
    assert read["small.below"].keys() >= {"own", "h", "at_run"}
    for name in ("f", "Sub", "Data", "Open", "same"):
        assert imported["small"][name] == read["small"][name], name
    for name in ("Sub", "named", "inside"):
        assert imported["small.warns"][name] == read["small.warns"][name], name
    for module in ("small.shown", "small.below"):
        assert imported[module] == read[module], module
    assert imported["small.below.deep"].keys() == read["small.below.deep"].keys()

"""Where a name that is used in a line with `# here` is bound."""

import libcst as cst
import pytest
from libcst import metadata

from migration_guide.codemod.reading.scopes import scopes
from migration_guide.codemod.reading.tree import walk

# Source -> the lines, from 1, that bind the `x` whose value is given to `here`.
CASES = {
    "module": ("x = 1\nhere(x)", [1]),
    "function-reads-the-module": ("x = 1\ndef f():\n    here(x)", [1]),
    "function-binds": ("x = 1\ndef f():\n    x = 2\n    here(x)", [3]),
    "parameter": ("x = 1\ndef f(x): here(x)", [2]),
    "default-is-outside": ("x = 1\ndef f(x=here(x)): pass", [1]),
    "lambda": ("x = 1\nlambda x: here(x)", [2]),
    "class-body": ("x = 1\nclass C:\n    x = 2\n    here(x)", [3]),
    "method-skips-the-class": ("x = 1\nclass C:\n    x = 2\n    def f(self): here(x)", [1]),
    "comprehension": ("x = 1\n[\n    here(x)\n    for x in y]", [4]),
    "first-iterable-is-outside": ("x = 1\n[0\n    for x in here(x)]", [1]),
    "second-iterable-is-inside": ("x = 1\n[0\n    for x in y for z in here(x)]", [3]),
    "walrus-leaves-a-comprehension": ("def f():\n    [x := y for y in z]\n    here(x)", [2]),
    "global": ("x = 1\ndef f():\n    global x\n    x = 2\n    here(x)", [1, 4]),
    "nonlocal": (
        "def f():\n    x = 1\n    def g():\n        nonlocal x\n        x = 2\n    here(x)",
        [2, 5],
    ),
    "several": ("for x in y: pass\nwith z as x: pass\nx += 1\nhere(x)", [1, 2, 3]),
    "nested-targets": ("(a, [x, *b]), c = y\nhere(x)", [1]),
    "pattern": ("match y:\n    case [a, *x]: here(x)", [2]),
    "except": ("try: pass\nexcept E as x: here(x)", [2]),
    "import": ("import a.b as x\nhere(x)", [1]),
    "dotted-import": ("import x.y.z\nhere(x)", [1]),
    "from": ("from . import (\n    a as x)\nhere(x)", [1]),
    "attribute-binds-nothing": ("y.x = 1\nhere(x)", []),
    "keyword-binds-nothing": ("f(x=1)\nhere(x)", []),
    "builtin": ("here(x)", []),
}


def test_where_a_name_is_bound(subtests: pytest.Subtests):
    for case, (code, expected) in CASES.items():
        with subtests.test(case):
            module = metadata.MetadataWrapper(cst.parse_module(code))
            lines = module.resolve(metadata.PositionProvider)
            known = scopes(module.module)
            (call,) = (
                node
                for node in walk(module.module)
                if isinstance(node, cst.Call)
                and isinstance(node.func, cst.Name)
                and node.func.value == "here"
            )
            found = known[call.args[0].value].find("x")
            assert sorted(lines[assignment.node].start.line for assignment in found) == expected


def test_what_an_import_binds(subtests: pytest.Subtests):
    for code, text, expected in [
        ("import a.b", "a.b.c", "a.b.c"),
        ("import a.b as x", "x.c", "a.b.c"),
        ("from a import b", "b.c", "a.b.c"),
        ("from a.b import c as x", "x", "a.b.c"),
        ("from .a import b", "b.c", ".a.b.c"),
    ]:
        with subtests.test(code):
            module = cst.parse_module(code)
            (assignment,) = scopes(module)[module].find(text.split(".")[0])
            assert assignment.qualified_name(text) == expected

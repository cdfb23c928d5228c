"""What a module's source says of its names."""

import ast

import pytest

from migration_guide.codemod.reading.source import undefined_names


def test_undefined(subtests: pytest.Subtests):
    for code, expected in [
        ("x = y", {"y"}),
        ("def f():\n    return z\n", {"z"}),
        ("import a.b\na\n", set()),
        ("def f(x): return x\nclass C: pass\nf, C\n", set()),
        ("[i for i in range(3)]\n", set()),
        ("def f():\n    global g\n    g = 1\ng\n", set()),
    ]:
        with subtests.test(code):
            ast.parse(code)
            assert undefined_names(code) == expected


def test_a_null_byte_is_no_python():
    with pytest.raises(SyntaxError, match="null bytes"):
        undefined_names("x = 1\0\n")

"""What a public function raises is said in its docstring."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent
FOLDERS = ("exact", "metadata", "optimizers", "correspondence", "training")
FILES = sorted(
    file
    for folder in (ROOT, *(ROOT / name for name in FOLDERS))
    for file in folder.glob("*.py")
    if not file.name.endswith("_test.py") and not file.name.startswith("__")
)


def test_what_a_public_function_raises_is_said():
    for file in FILES:
        body = ast.parse(file.read_text(encoding="utf-8")).body
        classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name[0] != "_"]
        for node in [*body, *(method for kind in classes for method in kind.body)]:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                raises = any(isinstance(part, ast.Raise) for part in ast.walk(node))
                assert not raises or "aises" in (ast.get_docstring(node) or ""), (file, node.name)

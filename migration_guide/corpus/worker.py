"""Runs programs one after another in one process and prints what each printed, as JSON.

    python worker.py MODE JOBS

MODE is `plain`, as `python PROGRAM` would, or `shim`, with what `optax-bridge run` installs. Also
runs on Python 3.10 with the genuine flax 0.5.3, where it lends JAX the names that it had when flax
0.5.3 was young. JOBS is a JSON list of a program and its arguments each.
"""

import contextlib
import io
import json
import os
import runpy
import sys
import tempfile
import traceback
import warnings

NUM_STEPS = "6"


def output_of(path: str, mode: str, *args: str, out: io.StringIO | None = None) -> str:
    """Returns a program's standard output, or its traceback if it fails."""
    before = sys.argv
    out, modules = out or io.StringIO(), set(sys.modules)
    if path.endswith(".ipynb"):
        return _output_of_notebook(path, mode)
    try:
        with contextlib.redirect_stdout(out), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if mode == "shim":
                import legacy_optim

                legacy_optim.install(old_defaults=True)
            sys.path.insert(0, os.path.dirname(path) if path.endswith(".py") else path)
            sys.argv = [path, *args]
            runpy.run_path(path, run_name="__main__")
            sys.path.pop(0)
    except Exception:  # any error of the program is its output, as a process would print it
        return traceback.format_exc()
    finally:
        sys.argv = before
        if mode == "shim":
            import legacy_optim

            legacy_optim.uninstall()
        here = os.path.dirname(os.path.abspath(path))
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if os.path.abspath(file).startswith(here):
                del sys.modules[name]
    return out.getvalue()


def _output_of_notebook(path: str, mode: str) -> str:
    """As for a script: the code cells, without magics and shell lines."""
    with open(path, encoding="utf-8") as file:
        cells = [c for c in json.load(file)["cells"] if c["cell_type"] == "code"]
    lines = "\n".join("".join(cell["source"]) for cell in cells).split("\n")
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "cells.py")
        with open(script, "w", encoding="utf-8") as file:
            file.write("\n".join(line for line in lines if not line.startswith(("%", "!"))))
        return output_of(script, mode)


def lend_old_names() -> None:
    """Gives jax 0.4.13 back what jax 0.3 had."""
    import types

    import jax

    config = types.ModuleType("jax.config")
    index = type("Index", (), {"__getitem__": lambda self, key: key})()
    for module, name, value in (
        (jax, "tree_multimap", jax.tree_util.tree_map),
        (jax.tree_util, "tree_multimap", jax.tree_util.tree_map),
        (jax.ops, "index", index),
        (jax.ops, "index_update", lambda x, i, y: x.at[i].set(y)),
        (jax.ops, "index_add", lambda x, i, y: x.at[i].add(y)),
        (config, "config", jax.config),
    ):
        setattr(module, name, value)
    sys.modules.setdefault("jax.config", config)


def main(mode: str, jobs: str) -> None:
    """Runs the programs and prints the list of their outputs."""
    if mode == "genuine":
        lend_old_names()
    print(json.dumps([output_of(path, mode, *args) for path, *args in json.loads(jobs)]))


if __name__ == "__main__":
    main(*sys.argv[1:])

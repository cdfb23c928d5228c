"""How long `optax-bridge migrate` takes: 3,000 files, 36 that are full of the API, a long one.

    python -m benchmarks.migrate_time

Processor seconds of this process, the median of some turns, which other programs disturb less
than they do a clock on the wall. In the tree, one file in a hundred uses flax.optim, and one in
three has a `.target` of its own. The 36 files are five programs of the corpus each. The long
file uses the API from end to end. The project's bounds are five seconds for the tree and ten
for the 36: above one of them the command exits with status 1.
"""

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from migration_guide.codemod import driver
from migration_guide.codemod.context import Options

BOUND = 5.0  # seconds for the tree
DENSE_BOUND = 10.0  # seconds for the files of the corpus
_FUNCTION = """
def train_step_{n}(optimizer: optim.Optimizer, batch):
    def loss_fn(params):
        return jnp.mean((params["w"] @ batch["x"] - batch["y"]) ** 2)

    loss, grad = jax.value_and_grad(loss_fn)(optimizer.target)
    step = optimizer.state.step
    new_optimizer = optimizer.apply_gradient(grad)
    norm = jnp.sqrt(sum(jnp.sum(x ** 2) for x in jax.tree_leaves(new_optimizer.target)))
    return new_optimizer, (loss, step, norm)

"""
_USER = f"import jax\nimport jax.numpy as jnp\nfrom flax import optim\n{_FUNCTION}"
_OTHER = "import numpy as np\n" + "def f(x):\n    return np.sum(x{0}) + 1\n" * 40


def write_tree(folder: Path, files: int) -> None:
    """Writes Python files into 50 folders: 1 in 100 uses flax.optim, 1 in 3 has `.target`."""
    for index in range(files):
        place = folder / f"package_{index % 50}"
        place.mkdir(exist_ok=True)
        other = _OTHER.format("" if index % 3 else ".target")
        text = other if index % 100 else _USER.format(n=index)
        (place / f"module_{index}.py").write_text(text, encoding="utf-8")


def write_dense(folder: Path, files: int, programs: int = 5) -> int:
    """Writes files of several programs of the corpus each; returns how many lines.

    Raises:
      FileNotFoundError: the corpus, which wheels leave out, is not there.
    """
    spec = importlib.util.find_spec("migration_guide.corpus")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the corpus is not part of a wheel: run it from a clone")
    corpus = Path(spec.submodule_search_locations[0])
    sources = [p.read_text(encoding="utf-8") for p in sorted(corpus.glob("[pr]*/*.py"))]
    lines = 0
    for index in range(files):
        chosen = [sources[(7 * index + n) % len(sources)] for n in range(programs)]
        text = "\n\n".join(chosen)
        (folder / f"module_{index}.py").write_text(text, encoding="utf-8")
        lines += text.count("\n")
    return lines


def long_file(lines: int) -> str:
    """A module of about so many lines that uses the API throughout."""
    per_function = _FUNCTION.count("\n")
    functions = (_FUNCTION.format(n=n) for n in range(lines // per_function))
    return "import jax\nimport jax.numpy as jnp\nfrom flax import optim\n" + "".join(functions)


def seconds_to_migrate(path: Path, turns: int) -> tuple[float, driver.Report]:
    """Median processor seconds of a run that writes nothing, and what it found."""
    times, report = [], driver.migrate([path], Options())  # this one warms the disk
    for _ in range(turns):
        start = time.process_time()
        report = driver.migrate([path], Options())
        times.append(time.process_time() - start)
    return statistics.median(times), report


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints seconds; 0 when the tree is within the bound, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=3000, help="in the tree (default 3000)")
    parser.add_argument("--dense", type=int, default=36, help="files of the corpus (default 36)")
    parser.add_argument("--lines", type=int, default=5000, help="of the long file (default 5000)")
    parser.add_argument("--turns", type=int, default=3, help="turns, of which the median counts")
    given = parser.parse_args(arguments)
    for name in ("files", "dense", "lines", "turns"):
        if getattr(given, name) < 1:
            parser.error(f"--{name}: expected at least 1, found {getattr(given, name)}")
    with tempfile.TemporaryDirectory() as folder:
        tree, dense, file = Path(folder, "tree"), Path(folder, "dense"), Path(folder, "long.py")
        tree.mkdir()
        dense.mkdir()
        write_tree(tree, given.files)
        file.write_text(long_file(given.lines), encoding="utf-8")
        in_tree, report = seconds_to_migrate(tree, given.turns)
        print(
            f"{report.seen} files, {report.parsed} parsed  {in_tree:6.2f} s{_mark(in_tree, BOUND)}"
        )
        lines = write_dense(dense, given.dense)
        in_dense, report = seconds_to_migrate(dense, given.turns)
        mark = _mark(in_dense, DENSE_BOUND)
        print(f"{report.parsed} files of the corpus, {lines} lines  {in_dense:6.2f} s{mark}")
        seconds, _ = seconds_to_migrate(file, given.turns)
        print(f"one file of {given.lines} lines  {seconds:6.2f} s")
    return int(in_tree > BOUND or in_dense > DENSE_BOUND)


def _mark(seconds: float, bound: float) -> str:
    return f"  above {bound:g}" if seconds > bound else ""


if __name__ == "__main__":
    sys.exit(main())

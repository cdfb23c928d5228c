"""The parts of pages that come from the code, whole, as `testdata/generated.txt` has them.

`python -m migration_guide.generated_test` writes the file again.
"""

from collections.abc import Iterator
from pathlib import Path

from migration_guide import from_pytorch, generated, pictures, rules_page, tables
from migration_guide.examples import page

FILE = Path(__file__).parent / "testdata" / "generated.txt"
OPTIMIZERS = ("Adafactor", "LARS", "Momentum", "MultiOptimizer", "WeightNorm")
COMMANDS = ("optax-bridge inspect", "optax-bridge migrate", "optax-bridge run")


def parts() -> Iterator[str]:
    """Every kind of part: of those that are many some."""
    yield tables.overview_markdown()
    yield tables.differences_markdown()
    for text, names in (
        (tables.optimizers_markdown(), OPTIMIZERS),
        (generated.commands_markdown(), COMMANDS),
    ):
        sections = f"\n{text}".split("\n## ")[1:]
        yield from (f"## {part}" for part in sections if part.partition("\n")[0] in names)
    for name in ("schedule", "target"):
        yield rules_page.section(rules_page.rule_text(name))
    yield generated.pages_markdown("torch/", "From", "PyTorch")
    yield generated.pages_markdown("nothing/")
    yield from (generated.install_markdown(*where) for where in ((), ("notebook",)))
    yield from (page.table(page.results()["examples"]), page.origin(), page.diff("mnist"))
    yield from_pytorch.table()
    yield pictures.figures({"a < b": "<svg/>", "c": ""})
    yield pictures.rows(("a", "b"), [("1", "2")])


def test_every_kind_of_part_is_as_it_is_recorded():
    text = "\n\n".join(map(str, parts()))
    assert text.splitlines() == FILE.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    FILE.write_text("\n\n".join(map(str, parts())) + "\n", encoding="utf-8")

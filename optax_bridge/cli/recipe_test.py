"""`optax-bridge recipe`: what it prints, and that what it prints runs."""

import ast
import io
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from optax_bridge.cli.app import app
from optax_bridge.cli.recipe import FOUND, MISUSE, NO_EQUAL, print_recipe
from optax_bridge.correspondence import ENTRIES


@pytest.mark.parametrize(
    ("text", "code", "printed"),
    [
        ("torch.optim.SGD(lr=0.1)", FOUND, "`optax-bridge prove --only torch` proves"),
        (
            "torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)",
            FOUND,
            "tx = optax_bridge.torch.adamw(weight_decay=0.05)",
        ),
        (
            "optim.Adam(model.parameters(), 1e-3, (0.8, 0.9))",  # flax.optim has an Adam as well
            FOUND,
            "tx = optax_bridge.torch.adam(betas=(0.8, 0.9))",
        ),
        ("torch.optim.SGD(lr=0.1, nesterov=True)", MISUSE, "momentum above 0 and"),
        (
            "torch.optim.Adam(params, fused=True)",
            FOUND,
            "torch.optim.Adam(fused=True): PyTorch then",
        ),
        ("torch.optim.SGD(lr=0.1, momentum=0.9)", FOUND, "state: momentum_buffer is trace: optax"),
        ("torch.optim.Muon()", FOUND, "exact: rounding only, at most 128 ULP"),
        ("torch.optim.ASGD()", NO_EQUAL, "optax: none. ASGD: public Optax has no such"),
        ("optim.LBFGS(params)", MISUSE, "optax.lbfgs() is the same method"),
        ("lr_scheduler.StepLR(opt, 30)", MISUSE, "torch.from_torch_schedule"),
    ],
)
def test_the_command_prints_source_verdict_and_notes(
    text: str, code: int, printed: str, capsys: pytest.CaptureFixture[str]
):
    assert print_recipe(text) == code
    captured = capsys.readouterr()
    assert printed in (captured.out + captured.err).replace("\n", " ")
    assert (captured.out == "") == (code == MISUSE)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_prose_wraps_at_words_and_source_stays_whole(width: int):
    """Whatever the width, the source is Python, and no word is broken."""
    console = Console(width=width, record=True, file=io.StringIO())
    groups = "MultiOptimizer(('*/kernel', Adafactor(0.1)), ('*', adam(0.1)))"
    print_recipe(groups, console=console)
    text = console.export_text()
    source = text[text.rindex("import optax\n") :].partition("\n)\n")[0] + "\n)\n"
    ast.parse(source)
    prose = text.replace(source, "")
    words = {word for entry in ENTRIES.values() for word in entry.notes.split()}
    shown = text[text.index("MultiOptimizer: ") :].split("Sources: ")[0].split()
    assert {*shown[1:]} <= words
    assert all(len(line) <= width for line in prose.splitlines())


COMMANDS = (
    "Adam()",
    "Adam(0.1) --recipe auto",
    "Adam(0.1) --recipe auto --dtype bfloat16",
    "Adam(0.1) --recipe optax --dtype float32 --dtype bfloat16",
    "Adam(0.1) --recipe exact",
    "Adagrad(0.1) --recipe auto",
    "Adafactor(0.1,epsilon2=e) --recipe optax",
    "Momentum(lr,beta=0.5,weight_decay=decay) --recipe optax --dtype float16",
    "WeightNorm(Adam()) --recipe optax",
    "WeightNorm(GradientDescent(0.1)) --recipe auto",
    "MultiOptimizer(('*/bias',Adam()),(kernels,adafactor(0.1))) --recipe optax",
    "MultiOptimizer(('*/bias',Adam(0.1)),(kernels,WeightNorm(LARS(0.1)))) --recipe auto",
    "Adam(-1e999)",
    "keras.optimizers.Adam(0.1)",
    "[1,2]",
)


def test_the_command_prints_what_is_recorded(recorded: Any):
    outputs = {}
    for command in COMMANDS:
        done = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["recipe", *command.split()])
        lines = [line.rstrip() for line in done.output.splitlines()]
        outputs[command] = "\n".join([*lines, f"exit code {done.exit_code}"])
    recorded("recipe.txt", outputs)

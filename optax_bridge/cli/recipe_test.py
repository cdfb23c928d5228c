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
        (
            "Adam(learning_rate=1e-3, weight_decay=0.01)",
            FOUND,
            "tx = optax_bridge.adam(learning_rate=0.001, weight_decay=0.01)",
        ),
        ("Adafactor(0.1, epsilon2=0.5)", NO_EQUAL, "fixed at 1e-3"),
        ("Adagrad(0.1)", FOUND, "different"),
        ("Adam()", FOUND, "tx = optax.adam(learning_rate=learning_rate, b1=0.9,"),
        ("RMSProp(0.1)", FOUND, "proves the two equal over the reals"),
        ("Adam(-1e999)", MISUSE, "learning_rate is a finite number"),
        ("WeightNorm(Adam())", FOUND, "optax.adam(learning_rate=learning_rate, b1=0.9,"),
        ("torch.optim.SGD(lr=0.1)", FOUND, "`optax-bridge prove --only torch` proves"),
        ("WeightNorm(Adam(0.1))", FOUND, "public Optax has no equivalent of WeightNorm"),
        ("Momentum(0.1)", FOUND, "state: momentum is trace: optax.tree.get(opt_state, name) and"),
        ("LAMB(0.1)", FOUND, "state: grad_ema is mu, grad_sq_ema is nu: optax"),
        ("LARS(0.1)", FOUND, "state: momentum is trace negated: optax"),
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
        ("torch.optim.adam.Adam(lr=0.1)", FOUND, "tx = optax_bridge.torch.adam(lr=0.1)"),
        ("torch.optim.SGD(lr=0.1, nesterov=True)", MISUSE, "momentum above 0 and"),
        ("torch.optim.Rprop(etas=(1.5, 1.2))", MISUSE, "etas below 1 and above it"),
        (
            "torch.optim.Adam(params, fused=True)",
            FOUND,
            "torch.optim.Adam(fused=True): PyTorch then",
        ),
        ("torch.optim.SGD(lr=0.1, momentum=0.9)", FOUND, "state: momentum_buffer is trace: optax"),
        ("torch.optim.Muon()", FOUND, "exact: rounding only, at most 64 ULP"),
        ("torch.optim.ASGD()", NO_EQUAL, "optax: none. ASGD: public Optax has no such"),
        ("keras.optimizers.Adam(0.1)", MISUSE, "is not the Adam of flax.optim"),
        ("optim.LBFGS(params)", MISUSE, "optax.lbfgs() is the same method"),
        ("lr_scheduler.StepLR(opt, 30)", MISUSE, "torch.from_torch_schedule"),
        ("CosineAnnealingLR(opt, T_max=30)", MISUSE, "torch.from_torch_schedule"),
        ("[1, 2]", MISUSE, "not a call of a legacy optimizer."),
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


@pytest.mark.parametrize(
    ("arguments", "printed", "missing"),
    [
        (["--recipe", "auto"], "tx = optax.adam(", "optax_bridge.adam("),
        (["--recipe", "auto", "--dtype", "bfloat16"], "tx = optax_bridge.adam(", "optax.adam("),
        (
            ["--dtype", "float32", "--dtype", "bfloat16"],
            "optax: not the same in bfloat16; elsewhere: rounding only",
            "not the same in float32",
        ),
        (["--recipe", "optax"], "holds for parameters in float32. Adam: public", "exact: "),
        (
            ["--recipe", "exact"],
            "holds for parameters in float32, bfloat16, float16",
            "optax: ",
        ),
    ],
    ids=" ".join,
)
def test_one_recipe_is_printed_for_some_dtypes(arguments: Any, printed: str, missing: str):
    done = CliRunner().invoke(app, ["recipe", "Adam(0.1)", *arguments])
    assert done.exit_code == 0
    before_notes = " ".join(done.stdout.split("\nAdam: ")[0].split())
    assert printed in before_notes and missing not in before_notes

"""Throws odd constructor calls at what reads `--optimizer` and `recipe`'s argument.

As in `fuzz.py` bytes decide: Hypothesis draws them in the tests, Atheris in `fuzz_by_coverage.py`.
"""

from optax_bridge.checkpoints.definitions import parse_definition
from optax_bridge.correspondence import ENTRIES, choose_recipe
from optax_bridge.correspondence.expression import ExpressionError, parse
from tools.checkpoint_fuzz import Choices, mutate

_CLASSES = [entry.legacy.__name__ for entry in ENTRIES.values()]
_NAMES = sorted({hp.legacy for entry in ENTRIES.values() for hp in entry.hyper_params})
_ATOMS = (
    *("1e-3", "0.9", "0", "-1", "--1", "~0", "not 1", "1e999", "-1e999", "1e-999", "1" * 400),
    *("0x1F", "1_0", "1j", "True", "None", "...", "''", "'*/kernel'", "b''", "f'{1}'", "f'{x!r}'"),
    *("jnp.float32", "jnp.bfloat16", "np.float99", "lr", "a.b.c", "x[0]", "x[1:2]", "[bold]x[/]"),
    *("lambda c: c", "{}", "{1}", "{'a': 1}", "[]", "()", "(1,)", "(1, 'a')", "[x for x in y]"),
    *("(yield)", "(x := 1)", "await x", "*a", "**a", "1 if 2 else 3", "1 < 2", "a @ b", "1 / 0"),
    *("\x00", "\ud800", "é", "ﬁ", "\n", "#", "\\", '"', "optax.cosine_decay_schedule(0.1, 100)"),
)


def expression(rng: Choices, depth: int = 0) -> str:
    """A call of a legacy class, or something that looks like one."""
    prefix = rng.choice(("", "", "", "optim.", "flax.optim.", "x().", "1."))
    arguments = [_argument(rng, depth) for _ in range(rng.integers(5))]
    text = f"{prefix}{rng.choice(_CLASSES)}({', '.join(arguments)})"
    if depth == 0 and rng.random() < 0.2:
        text = mutate(text.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")
    return text


def _argument(rng: Choices, depth: int) -> str:
    kind = rng.integers(8)
    if kind < 2 and depth < 4:
        value = expression(rng, depth + 1)
    elif kind == 2:
        value = rng.choice(("-", "(", "((),", "Adam(")) * rng.choice((1, 60, 3000))
    elif kind == 3:
        value = f"({rng.choice(_ATOMS)}, {rng.choice(_ATOMS)})"
    else:
        value = rng.choice(_ATOMS)
    return f"{rng.choice(_NAMES)}={value}" if rng.random() < 0.6 else value


def survives_expression(text: str) -> str:
    """`read`, or `refused` by an error that the commands show as a message."""
    try:
        described = parse(text)
    except ExpressionError:
        return "refused"
    choose_recipe(described)
    try:
        parse_definition(text)
    except (ExpressionError, TypeError, ValueError):  # what `convert` shows
        return "refused"
    return "read"


def survives_bytes(data: bytes) -> str:
    """The outcome of one input: half of them are plain text, half a call made by the bytes."""
    rng = Choices(data)
    if rng.random() < 0.5:
        return survives_expression(data[1:].decode("utf-8", "surrogateescape"))
    return survives_expression(expression(rng))

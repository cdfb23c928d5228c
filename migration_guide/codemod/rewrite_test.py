"""What is too deep or too long to be read, what may hold a rate, and answered questions."""

import re

import pytest

from migration_guide.codemod.reading.marks import PREFIX
from migration_guide.codemod.results import Options, Rewritten
from migration_guide.codemod.rewrite import rewrite

IMPORTS = "import jax\nfrom flax import optim\n"


def settled(code: str, options: Options | None = None) -> Rewritten:
    """The result of a rewrite that is not refused, and which a second one does not change."""
    options = options or Options()
    result = rewrite(code, options)
    assert result.refused == ""
    assert rewrite(result.code, options).code == result.code
    return result


SETUP = "d = optim.Adam(0.1)\nopt = d.create(p)\n"


@pytest.mark.parametrize("given", ["**how", "*how", "grads=g, **how", "g, **how", "g, how"])
def test_arguments_that_may_hold_a_rate_need_the_exact_port(given: str):
    code = f"{IMPORTS}{SETUP}opt = opt.apply_gradient({given})\n"
    assert "d = optax_bridge.adam(0.1)" in rewrite(code, Options()).code


def test_what_would_overflow_a_parser_is_refused(subtests: pytest.Subtests):
    for opening in ["[", "(", "f(", "{1:", "-", "lambda: ", "x if ", "a."]:
        with subtests.test(opening):
            for count in (195, 300, 6000):
                for code in (
                    f"y = {opening * count}\n{IMPORTS}",
                    f"{IMPORTS}y = {opening * count}\n",
                ):
                    refused = rewrite(code, Options()).refused
                    assert refused.startswith(
                        ("cannot be parsed as Python: line", "nested too deeply")
                    )


def test_a_long_line_is_no_matter_and_data_is_left_with_a_message():
    numbers = ", ".join(["0.25"] * 2_000)
    code = f"from flax import optim\nx = optim.Adam(0.1)\ny = [{numbers}]\n"
    assert "optax.adam(" in rewrite(code, Options()).code
    image = f"{code}z = '{'A' * 700_000}'\n"
    assert "optax.adam(" in rewrite(image, Options()).code
    data = code.replace(numbers, ", ".join([numbers] * 60))
    result = rewrite(data, Options())
    assert (result.code, "move data into a file" in result.refused) == (data, True)


def test_once_annotated_as_told_nothing_is_left_to_do(subtests: pytest.Subtests):
    for case in ("f(optimizer): return optimizer.target",
                 "f(my_opt): return my_opt.restore_state(d)",
                 "f(optimizer): return optimizer.state_dict()"):  # fmt: skip
        with subtests.test(case):
            first = rewrite(f"{IMPORTS}\ndef {case}\n", Options()).code
            told = re.sub(r"(def f\(\w+)", r"\1: optax_bridge.TrainState", first)
            again = rewrite(f"import optax_bridge\n{told}", Options())
            assert (again.messages, PREFIX in again.code) == ((), False)
            assert ".from_state_dict(my_opt, d)" in again.code or "restore" not in case

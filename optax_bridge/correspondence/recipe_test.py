"""Recipes as data, and the text that they are written as."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import legacy_optim
from optax_bridge.correspondence import (
    ENTRIES,
    Call,
    choose_recipe,
)
from optax_bridge.correspondence.expression import MAX_DEPTH, ExpressionError, parse
from optax_bridge.correspondence.recipe import (
    Name,
    Source,
    build,
    call,
    imports,
    render,
)
from optax_bridge.correspondence.values import expectation

WRITTEN = [
    1,
    0.1,
    1e-30,
    -2.5,
    True,
    None,
    "text",
    math.inf,
    -math.inf,
    math.nan,
    jnp.bfloat16,
    np.dtype("float32"),
    jnp.float32(0.1),
    np.float16(2.5),
    (1, (2.0, None)),
    (0.5,),
    (),
]


def test_a_value_is_written_as_source_of_an_equal_value(subtests: pytest.Subtests):
    for value in WRITTEN:
        with subtests.test(str(value)):
            names: dict[str, Any] = {}
            for module in imports(value):
                exec(f"import {module}", names)
            again = eval(render(value), names)
            assert again == value or (math.isnan(again) and math.isnan(value))
            if isinstance(value, float):
                assert type(again) is float


def test_a_value_without_source_says_what_to_do():
    with pytest.raises(ValueError, match=r"recipe\.Source"):
        render(lambda count: count)


def test_a_source_is_written_as_it_is_and_built_as_its_value():
    recipe = call("optax.sgd", Source("schedule", 0.5))
    assert render(recipe) == "optax.sgd(schedule)"
    updates, _ = build(recipe).update(1.0, build(recipe).init(1.0))
    assert updates == -0.5


def test_a_name_is_what_it_names():
    assert build(Name("optax.tree_utils.tree_get")) is optax.tree_utils.tree_get
    assert imports(Name("optax.tree_utils.tree_get")) == ("optax.tree_utils",)
    with pytest.raises(ValueError, match="names nothing"):
        build(Name("no_such_module.thing"))


PARSED = [
    ("Adam(learning_rate=1e-3)", {"learning_rate": 1e-3, "beta1": 0.9}),
    ("optim.Adam(1e-3, 0.8)", {"learning_rate": 1e-3, "beta1": 0.8}),
    ("flax.optim.Adam(1e-3, weight_decay = -1e-8)", {"weight_decay": -1e-8}),
    ("flax.optim.adam.ADAM(None, beta1=0)", {"beta1": 0}),
    ("momentum(learning_rate_fn(1), nesterov=flag)", {"beta": 0.9, "nesterov": Source("flag")}),
    ("Adafactor(clipping_threshold=None, weight_decay_rate=1)", {"clipping_threshold": None}),
    ("  Adam( )  ", {"learning_rate": None}),
    ("Adafactor(dtype_momentum=jnp.bfloat16)", {"dtype_momentum": Name("jax.numpy.bfloat16")}),
    ("Momentum(config.lr)", {"learning_rate": Source("config.lr"), "beta": 0.9}),
    ("Momentum(0.1 * 2)", {"learning_rate": Source("0.1 * 2")}),
    ("MultiOptimizer(pair)", {"traversals_and_optimizers": (Source("pair"),)}),
    ("torch.optim.Adam(p, betas=b, fused=False, foreach=None)", {"betas": Source("b")}),
    ("optim.AdamW(model.named_parameters(), 0.5)", {"lr": 0.5, "maximize": False}),
    ("Adafactor(dtype_momentum=np.float64)", {"dtype_momentum": Name("jax.numpy.float64")}),
    ("legacy_optim.Momentum(1)", {"learning_rate": 1}),
]


def test_parsing_fills_in_the_defaults(subtests: pytest.Subtests):
    for text, settings in PARSED:
        with subtests.test(text):
            parsed = parse(text).settings
            assert {name: parsed[name] for name in settings} == settings
            assert parse(text).remarks() == []


REFUSED = (
    *(
        "Adam",
        "Adm(0.1)",
        "AdamW(lr=0.1)",
        "[1, 2]",
        "__import__('os').system('true')",
        "lambda: 1",
    ),
    *("mxnet.optimizer.Adam(1e-3)", "WeightNorm(optax.adam(1e-3))", "optax_bridge.adam(0.1)"),
    *("Adam(beta3=1)", "Adam(lr=1)", "Momentum(decay=0.9)", "Adam(0.1, learning_rate=0.1)"),
    *("Adam('abc')", "Adam(True)", "Adam(beta1=2)", "Adam(beta2=1.0)", "Adam(alpha=1e-3)"),
    *("Adam(eps=-1)", "Momentum(beta=1.5)", "Momentum(nesterov=1)", "Adam(zzz=1)"),
    *("Adafactor(beta1=-1)", "Adafactor(clipping_threshold='x')", "torch.optim.Adam(betas=(1, 0))"),
    *("torch.optim.Adam(betas=0.9)", "torch.optim.AdamW(p, 1, (0.9, 0.9), 1, 1, False, True)"),
    *(
        "torch.optim.SGD(0.1)",
        "torch.optim.SGD(p, params=q)",
        "optim.SGD([{'params': p}])",
        "torch.optim.Adm(lr=1)",
    ),
    *("MultiOptimizer(Adam(1e-3))", "MultiOptimizer()", "MultiOptimizer((1, Adam(1)))"),
    *("MultiOptimizer(('*', Adam(1)), strict=1)", "MultiOptimizer(('*', 3))"),
    *("Adam(1, 2, 3, 4, 5, 6)", "Adam(**settings)", "Adam(*settings)", "WeightNorm()"),
    *("WeightNorm(1)", "WeightNorm(Adam(beta1=2))", "Adam(learning_rate=1j)", "Adam([0.1])"),
    *("Adam(0.1, (1, (2, b'x')))", "Adam(weight_decay={1: 2})", "Adam('" + "x" * 20_000 + "')"),
)
# Where Python's parser itself gives up, and how, differs between its releases.
TOO_MUCH = ("Adam(", "", "Adam(\x00)", "(" * 300 + ")" * 300, "Adam(" + "-" * 3000 + "1)")


def test_what_is_no_constructor_call_is_refused(recorded: Any, subtests: pytest.Subtests):
    recorded("refused.txt", {text[:60]: lambda text=text: parse(text) for text in REFUSED})
    for length, end in ((100, ""), (101, r"\.\.\.")):
        with pytest.raises(ExpressionError, match=f"^'-{{100}}'{end} is not a Python expression"):
            parse("-" * length)
    for text in (*TOO_MUCH, "Adam(" + "a." * 3000 + "b)"):
        with (
            subtests.test(text[:60]),
            pytest.raises(ExpressionError, match=r"is (not a|nested too deep)"),
        ):
            parse(text)


def test_depth_is_allowed_up_to_the_limit():
    assert parse("Adam(" + "-" * (MAX_DEPTH - 1) + "1)").settings["beta1"] == 0.9
    with pytest.raises(ExpressionError, match="nested too deep"):
        parse("Adam(" + "-" * MAX_DEPTH + "1)")


def test_parsed_and_constructed_optimizers_have_the_same_recipe():
    definition = legacy_optim.LARS(0.1, weight_decay=1e-4, nesterov=True)
    text = "LARS(0.1, weight_decay=1e-4, nesterov=True)"
    assert render(choose_recipe(parse(text), "exact").call) == render(
        choose_recipe(definition, "exact").call
    )


def test_what_the_suite_runs_is_what_a_hyper_parameter_can_take(subtests: pytest.Subtests):
    for entry in ENTRIES.values():
        with subtests.test(str(entry)):
            ranges = {hp.legacy: hp for hp in entry.hyper_params}
            for settings in [entry.defaults(), *(case.settings for case in entry.cases)]:
                for name, value in settings.items():
                    hp = ranges[name]
                    assert isinstance(value, Call | tuple) or not expectation(
                        hp.default, hp.within, value
                    )


def test_a_class_within_a_module_is_reached():
    assert imports(Call("optax_bridge.TrainState.create")) == ("optax_bridge",)

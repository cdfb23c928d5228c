"""Holds the table together: names, defaults, states, recipes and cases of every entry."""

import inspect
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import legacy_optim
import optax_bridge
from optax_bridge.correspondence import (
    ENTRIES,
    ORIGINS,
    Choice,
    UnsupportedSetting,
    Verdict,
    all_entries,
    choose_recipe,
)
from optax_bridge.correspondence.claim import Claim
from optax_bridge.correspondence.entry import Case, Entry
from optax_bridge.correspondence.recipe import build, imports, render, resolve
from optax_bridge.correspondence.table import names_of_entries

CASES = {
    f"{entry.name}-{index}": (entry, case)
    for entry in all_entries().values()
    for index, case in enumerate(entry.cases)
}
each_case = pytest.mark.parametrize(("entry", "case"), CASES.values(), ids=CASES)

_ALL = {"kernel": jnp.arange(12.0).reshape(4, 3) / 7 + 0.1, "bias": jnp.ones(3) / 3}


def _params(entry: Entry) -> dict[str, Any]:
    return {n: p for n, p in _ALL.items() if p.ndim == 2 or "vectors" not in entry.excluded}


def _grads(params: dict[str, Any]) -> dict[str, Any]:
    return jax.tree.map(jnp.cos, params)


def test_every_export_has_one_entry():
    exports = [getattr(legacy_optim, name) for name in legacy_optim.__all__]
    classes = [value for value in exports if inspect.isclass(value)]
    definitions = {value for value in classes if issubclass(value, legacy_optim.OptimizerDef)}
    entries = [entry.legacy.cls for entry in ENTRIES.values()]
    assert {*entries} == definitions - {legacy_optim.OptimizerDef}
    assert len({*entries}) == len(entries)


def test_port_is_public_and_takes_the_hyper_parameters(subtests: pytest.Subtests):
    for name, entry in all_entries().items():
        with subtests.test(name):
            parameters = inspect.signature(resolve(entry.port)).parameters
            by_name = {hp.port for hp in entry.hyper_params if hp.by_name}
            ported = [hp.port for hp in entry.hyper_params]  # what is new is by keyword only
            assert ported == [
                n for n, p in parameters.items() if n in by_name or p.kind is not p.KEYWORD_ONLY
            ]
            for hp in entry.hyper_params:
                assert parameters[hp.port].default == hp.default or hp.variadic


def test_cases_move_every_hyper_parameter_off_its_default(subtests: pytest.Subtests):
    for name, entry in all_entries().items():
        with subtests.test(name):
            moved = {name for case in entry.cases for name in case.settings} | {entry.rate}
            assert {hp.legacy for hp in entry.hyper_params} <= moved


def test_what_stands_for_something_without_an_equal_is_in_optax(subtests: pytest.Subtests):
    for table in ORIGINS:
        remedies = [*table.without_entry.items()]
        remedies += [item for entry in table.values() for item in entry.extra_arguments.items()]
        for name, text in remedies:
            with subtests.test(f"{table.name}: {name}"):
                for dotted in re.findall(r"\boptax(?:\.\w+)+", text):
                    assert resolve(dotted) is not None, dotted


def test_state_fields_are_claimed_once_or_dropped(subtests: pytest.Subtests):
    cases = ((entry, case) for entry in all_entries().values() for case in entry.cases)
    for entry, case in cases:
        with subtests.test(f"{entry.name}: {case}"):
            if entry.parts is not None and not entry.fields:
                continue  # its state is that of its groups
            definition = entry.definition(case, case.learning_rate)
            row = jax.tree.leaves(
                definition.init_state(_params(entry)).param_states,
                is_leaf=lambda x: hasattr(x, "replace"),
            )
            fields = {name for state in row for name in getattr(state, "__dataclass_fields__", ())}
            claimed = [field.legacy for field in entry.state] + list(entry.dropped)
            assert sorted(claimed) == sorted(fields)


def test_a_state_is_recognised_by_its_fields(subtests: pytest.Subtests):
    for name, entry in all_entries().items():
        with subtests.test(name):
            assert entry.matches({entry.fields}) or not entry.fields
            assert entry.matches(set()) is (not entry.fields and entry.parts is None)
            assert not entry.matches({frozenset({"no such field"})})


@each_case
def test_render_evaluates_to_what_build_makes(entry: Entry, case: Case):
    for recipe in _choices(entry, case).values():
        try:
            source = render(recipe.call)
        except ValueError as error:
            assert any(hp.variadic for hp in entry.hyper_params), error  # a traversal has no source
            continue
        names: dict[str, Any] = {}
        for module in imports(recipe.call):
            exec(f"import {module}", names)
        built, evaluated = build(recipe.call), eval(source, names)
        left, right = (_two_steps(tx, _params(entry)) for tx in (built, evaluated))
        jax.tree.map(np.testing.assert_array_equal, left, right)


@each_case
def test_state_map_goes_both_ways(entry: Entry, case: Case):
    definition = entry.definition(case, case.learning_rate)
    optimizer = definition.create(_params(entry))
    optimizer = optimizer.replace(state=jax.tree.map(_some_number, optimizer.state))
    for exact, choice in _choices(entry, case).items():
        if choice.claim.verdict is Verdict.DIFFERENT:
            continue  # no state goes over to another optimizer
        state = optax_bridge.TrainState.from_legacy(optimizer, exact=exact)
        counts = [
            leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(state.opt_state)
            if jax.tree_util.keystr(path).endswith(".count")
        ]
        assert counts == [3] * len(counts)
        assert int(state.step) == 3
        back = state.to_legacy(definition)
        assert jax.tree.structure(back) == jax.tree.structure(optimizer)
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(optimizer), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def _some_number(leaf: Any) -> Any:
    """In the place of what training would have come to; what is of no use stays as it is."""
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return jnp.full_like(leaf, 3)
    unused = leaf.shape == (1,)
    return leaf if unused else jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape)


def _choices(entry: Entry, case: Case) -> dict[bool, Choice]:
    """The exact recipe, and that of public Optax where it has an equal of these settings."""
    definition = entry.definition(case, case.learning_rate)
    choices = {True: choose_recipe(definition, "exact")}
    try:
        choices[False] = choose_recipe(definition, "optax")
    except UnsupportedSetting as error:
        unsupported = {u.name for u in entry.unsupported}
        assert not entry.optax or unsupported & set(case.settings), error
    return choices


def _two_steps(tx: Any, params: dict[str, Any]) -> Any:
    """Their program, not run: its text, its constants and the structure of the state."""

    def steps(params: dict[str, Any]) -> Any:
        state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
        for _ in range(2):
            state = state.apply_gradients(grads=_grads(params))
        return {"params": state.params, "opt_state": state.opt_state}

    program, shapes = jax.make_jaxpr(steps, return_shape=True)(params)
    text = re.sub("0x[0-9a-f]+", "", str(program))
    return text, program.consts, str(jax.tree.structure(shapes))


@pytest.mark.parametrize("verdict", Verdict)
@pytest.mark.parametrize("ulp", [None, 2.0], ids=str)
def test_only_rounding_has_a_bound_and_must_have_one(verdict: Verdict, ulp: float | None):
    if (verdict is Verdict.ROUNDING) is (ulp is not None):
        assert Claim(verdict, ulp).ulp == ulp
    else:
        with pytest.raises(ValueError, match="a bound in ULP belongs to 'rounding only'"):
            Claim(verdict, ulp)


def test_an_optimizer_is_known_by_each_of_its_names():
    given = (
        "ADAM",
        "torch.adamw",
        "torch.optim.AdamW",
        "flax.optim.lamb",
        "weight_norm",
        "Adm",
        "All",
    )
    found = ["adam", "torch.adamw", "torch.adamw", "lamb", "weight_norm", "Adm", "all"]
    assert names_of_entries(given, ["all"]) == found

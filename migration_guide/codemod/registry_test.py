"""Rules say what they need of each other, so the order of their files does not matter."""

import itertools
import random

import libcst as cst
import pytest

from migration_guide.codemod import left_alone_test, rewrite_test
from migration_guide.codemod.registry import RULES, Rule, order_rules
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.writing.context import Context

HEAD = rewrite_test.IMPORTS + rewrite_test.SETUP
SOURCES = [
    *(HEAD + before for before, _ in rewrite_test.REWRITES.values()),
    *(f"{HEAD}x = {before}\n" for before, _ in rewrite_test.CONSTRUCTORS.values()),
    *(f"{HEAD}{before}\n" for before, _ in left_alone_test.BY_HAND.values()),
    rewrite_test.SCHEDULED,
]


def test_the_order_of_files_does_not_matter():
    shuffled = list(RULES)
    random.Random(0).shuffle(shuffled)
    rules = order_rules(shuffled)
    assert rules != RULES
    differ = [
        source
        for source in SOURCES[::2]
        if rewrite(source, Options(), rules=rules) != rewrite(source, Options())
    ]
    assert differ == []


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("nowhere", "would use 'nowhere', which nothing defines"),
        ("class", "would not be Python"),
        ("", "a further run would change the result once more"),
    ],
)
def test_what_a_rule_does_wrong_is_not_written(made: str, said: str):
    source = "x = 1\nx.here\n"
    turns = itertools.count()

    def rewrite_attribute(
        context: Context, original: cst.Attribute, updated: cst.Attribute
    ) -> cst.BaseExpression:
        if made:
            return cst.Name(made)
        context.by_hand(original, "so that there is a further round")
        return updated.with_changes(attr=cst.Name(f"here{next(turns)}"))

    rule = Rule("wrong", "", {"rewrite_attribute": rewrite_attribute})
    result = rewrite(source, Options(), rules=[*RULES, rule])
    assert (result.code, said in result.refused) == (source, True)


def test_a_name_that_a_rule_answers_for_is_left_to_it():
    source = "import jax\ny = jax.soft_pmap(f)(y)\n"
    rules = [*RULES, Rule("new", "", {}, answers_for=frozenset({"jax.soft_pmap"}))]
    assert rewrite(source, Options()).code != rewrite(source, Options(), rules=rules).code == source

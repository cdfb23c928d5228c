"""What a wrong rule does is not written, and a name is left to the rule that answers for it."""

import itertools

import libcst as cst
import pytest

from migration_guide.codemod.registry import RULES, Rule
from migration_guide.codemod.results import Options
from migration_guide.codemod.rewrite import rewrite
from migration_guide.codemod.writing.context import Context


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("nowhere", "would use 'nowhere', which nothing defines"),
        ("class", "would not be Python"),
        ("", "another run would change the result again"),
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

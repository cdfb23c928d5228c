"""What old releases had and today's lack, with the last release that had it."""

from typing import Any

from tools.gone_names import __main__ as gone_names

KINDS = ("today", "moved", "modules", "objects", "names", "attributes", "keywords")


def test_what_is_gone_has_the_last_release_that_had_it():
    attributes = {"c_or_r": [], "deriv": ["m", "degree"], "plot": []}
    members = {"float": {}, "poly1d": {"keywords": ["r", "roots"], "attributes": attributes}}
    old = {"numpy": members, "numpy.testing": {}, "numpy.rand": {"a": {}}}
    later = {"numpy": {"float": {}, "never_old": {}}}
    inventory: dict[str, Any] = {kind: {} for kind in KINDS}
    gone_names._compare("numpy", [{"numpy": {}}, old, later, {}], 2, inventory)
    assert {kind: table for kind, table in inventory.items() if table} == {
        "modules": {"numpy.rand": 1},
        "names": {"numpy": {"float": 2}},
        "keywords": {"numpy.poly1d": {"roots": 1}, "numpy.poly1d.deriv": {"degree": 1}},
        "attributes": {"numpy.poly1d": {"plot": 1}},  # `c_or_r` is what `__init__` takes
    }

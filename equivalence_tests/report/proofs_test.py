import dataclasses
import io
import re
from typing import Any

from rich.console import Console

from equivalence_tests.proof.claims import prove_task
from equivalence_tests.proof.table import Task, is_held, statements
from equivalence_tests.report.proofs import closing_line, print_rows, to_json


def test_nothing_is_claimed_where_a_dtype_makes_another_number_of_a_setting():
    task = Task("torch.adamax", 0, "optax", "bfloat16")  # whose decay of 0.999 is 1 there
    row = prove_task(task, details=False)
    assert row.held
    assert row.verdict == "not decided"
    assert not is_held(statements(task)[0], row.verdict, "float32")
    assert closing_line([row], 1.0).startswith("0 of 0 claims proved")


def test_all_that_is_printed_and_written_is_as_recorded(recorded: Any):
    tasks = (Task("sgd", 0, "exact", "float32"), Task("adam", 0, "optax", "float32"))
    some = [dataclasses.replace(prove_task(task), seconds=1.0) for task in tasks]
    broken = dataclasses.replace(some[1], task=Task("adam", 1, "optax", "bfloat16"), held=False)
    none = dataclasses.replace(some[0], task=Task("sgd", 0, "optax", "float32"), claim=None)
    console = Console(width=200, file=io.StringIO())
    print_rows(console, [*some, broken, none], 2.0)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    plain = [dataclasses.replace(row, proofs=()) for row in some]
    text = re.sub(r", [\d.e-]+ s$", "", printed, flags=re.M)
    recorded("proofs.txt", {"printed": text, "written": to_json(plain)})

from equivalence_tests.proof.claims import prove_task
from equivalence_tests.proof.table import Task, is_held, statements
from equivalence_tests.report.proofs import closing_line


def test_nothing_is_claimed_where_a_dtype_makes_another_number_of_a_setting():
    task = Task("torch.adamax", 0, "optax", "bfloat16")  # whose decay of 0.999 is 1 there
    row = prove_task(task, details=False)
    assert row.held
    assert row.verdict == "not decided"
    assert not is_held(statements(task)[0], row.verdict, "float32")
    assert closing_line([row], 1.0).startswith("0 of 0 claims proved")

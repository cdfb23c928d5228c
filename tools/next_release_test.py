"""Failures with newer releases are told apart."""

from pathlib import Path

import pytest

from tools import next_release


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("ModuleNotFoundError: No module named 'jax.experimental.maps'", "does not import"),
        ("AttributeError: module 'jax' has no attribute 'xla'", "gone name"),
        ("AssertionError: not decided: primitive foo_p", "another primitive"),
        ("AssertionError: \nNot equal to tolerance rtol=0", "other bits"),
        ("DeprecationWarning: jax.core.Foo is deprecated", "deprecated"),
        ("OSError: disk full", "other"),
        # The first line decides where it tells.
        ("AttributeError: module 'jax' has no attribute 'xla'\nin a primitive", "gone name"),
        ("DeprecationWarning: jax.core.Foo\nand numbers differ", "deprecated"),
    ],
)
def test_a_failure_has_its_class(
    message: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert next_release.class_of(message) == expected
    report = tmp_path / "next.xml"
    tag = "error" if expected == "does not import" else "failure"  # at collection, in the test
    report.write_text(
        '<testsuites><testsuite><testcase classname="a_test" name="one"/>'
        '<testcase classname="b_test" name="two">'
        f'<{tag} message="{message.partition(chr(10))[0]}">{message}</{tag}>'
        "</testcase></testsuite></testsuites>"
    )
    assert next_release.main([str(report)]) == 1
    assert f"{expected}: 1\n  b_test::two" in capsys.readouterr().out

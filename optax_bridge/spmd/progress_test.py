import io

import pytest
from rich.console import Console

from optax_bridge.spmd.progress import progress_line


@pytest.mark.parametrize("terminal", [False, True], ids=["file", "terminal"])
def test_until_the_time_left_is_known_it_is_measured(terminal: bool):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100)
    with progress_line(console, 3) as step_taken:
        step_taken(1, 0.5)
        assert "step 1 of 3  loss 0.5000  measuring the speed" in file.getvalue()
        step_taken(3, 0.25)
    last = file.getvalue().rpartition("step 3 of 3")[2]
    assert "loss 0.2500" in last and "0:00 left" in last and "measuring" not in last

"""Two processes joined by jax.distributed against one with as many devices."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

OPTIMIZERS = ("adam", "lamb", "momentum")


def start(devices: int, out: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "equivalence_tests.suite.processes", "--out", str(out)]
    return subprocess.Popen(
        [*command, *arguments, *OPTIMIZERS],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("processes")
    together = ("--coordinator", f"localhost:{free_port()}", "--processes", "2", "--process")
    runs = [
        start(8, folder / "one.npz"),
        start(4, folder / "two.npz", *together, "0"),
        start(4, folder / "two.npz", *together, "1"),
    ]
    try:
        for run in runs:
            output, _ = run.communicate(timeout=240)
            assert run.returncode == 0, output
    finally:
        for run in runs:
            run.kill()
    return folder / "one.npz", folder / "two.npz"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_give_what_one_gives(files: tuple[Path, Path], optimizer: str):
    one, two = (np.load(file) for file in files)
    assert one["devices"] == two["devices"] == 8
    names = [name for name in one.files if name.startswith(optimizer)]
    assert len(names) > 5
    assert set(one.files) == set(two.files)
    for name in names:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
        assert one[name].dtype == two[name].dtype

"""Memory and time of converting a large checkpoint: `python -m benchmarks.conversion --mib 2048`.

Each measurement runs in a process of its own: the interpreter with everything imported, a copy of
the file with msgpack decoding (what Flax does), and the conversion to Orbax, to msgpack and back.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from optax_bridge.checkpoints.formats.flax_msgpack.encode import write_msgpack

_IMPORTS = """
import sys, time
from pathlib import Path
from flax import serialization
import legacy_optim
import jax; jax.devices()
from benchmarks.peak import peak_bytes
from optax_bridge.checkpoints import convert_file
from optax_bridge.checkpoints.formats.orbax import write as orbax_write
source, destination = map(Path, sys.argv[1:])
started = time.perf_counter()
"""
_REPORT = """
print("result", time.perf_counter() - started, peak_bytes())
"""
_BACK = "convert_file(source, destination, legacy_optim.Adam(1e-3), to_legacy=True"
PROGRAMS = {
    "imports": "",
    "copy": "tree = serialization.msgpack_restore(source.read_bytes())\n"
    "destination.write_bytes(serialization.msgpack_serialize(tree, in_place=True))",
    "orbax": "convert_file(source, destination, legacy_optim.Adam(1e-3), verify=False)",
    "orbax, verified": "convert_file(source, destination, legacy_optim.Adam(1e-3))",
    "msgpack": (
        "convert_file(source, destination, legacy_optim.Adam(1e-3), msgpack=True, verify=False)"
    ),
    "msgpack, verified": "convert_file(source, destination, legacy_optim.Adam(1e-3), msgpack=True)",
    "back from orbax": _BACK + ", verify=False)",
    "back from orbax, verified": _BACK + ")",
    "back from msgpack, verified": _BACK + ")",
}


def write_source(path: Path, mib: int) -> None:
    """Writes an Adam checkpoint of that size: parameters and two moments, in layers of 32 MiB."""
    layers = max(1, mib // (3 * 32))
    kernel = np.random.default_rng(0).normal(size=(mib * 2**20 // (12 * layers * 1024), 1024))
    kernel = kernel.astype(np.float32)
    names = [f"layer_{index}" for index in range(layers)]
    moments = {"grad_ema": kernel, "grad_sq_ema": kernel}
    state = {"step": np.int32(7), "param_states": {name: {"kernel": moments} for name in names}}
    with path.open("wb") as file:
        write_msgpack(file, {"target": {n: {"kernel": kernel} for n in names}, "state": state})


def measure(program: str, source: Path, destination: Path) -> tuple[float, int]:
    """Seconds and peak resident bytes of a program in a process of its own."""
    code = _IMPORTS + program + _REPORT
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(source), str(destination)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    fields = done.stdout.split("result ")[1].split()
    return float(fields[0]), int(fields[1])


def remove(path: Path) -> None:
    """Deletes a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--only", default="", help="measure only programs with this in their name")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "checkpoint_7")
        write_source(source, arguments.mib)
        size = source.stat().st_size
        base, copy_time = 0, 0.0
        print(f"{size / 2**30:.2f} GiB, {time.strftime('%Y-%m-%d')}")
        for name, program in PROGRAMS.items():
            if name not in ("imports", "copy") and arguments.only not in name:
                continue
            plain = name.removeprefix("back from ").removesuffix(", verified")
            new = Path(folder, plain)  # what one measurement writes is what the way back reads
            back = name.startswith("back")
            if not back:
                remove(new)
            paths = (new, Path(folder, "back")) if back else (source, new)
            seconds, peak = measure(program, *paths)
            remove(Path(folder, "back"))
            base = peak if name == "imports" else base
            copy_time = seconds if name == "copy" else copy_time
            ratio = seconds / copy_time if copy_time else 0.0
            print(
                f"{name:28} {seconds:6.1f} s, {ratio:4.2f} times the copy; peak memory above the "
                f"imports {(peak - base) / size:4.2f} times the file",
                flush=True,
            )


if __name__ == "__main__":
    main()

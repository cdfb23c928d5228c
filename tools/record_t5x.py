"""Records checkpoints of T5X in its later form, with the class of Orbax that T5X called for them.

T5X was never on the index of packages; what it handed to Orbax's `PyTreeCheckpointHandler` is the
state dict of its `FlaxOptimTrainState`, whose fields are below. In an environment with Python 3.10,
jax 0.4.13, flax 0.5.3 and orbax-checkpoint 0.2.3 (arrays in folders) or 0.3.5 (in one store):

    python tools/record_t5x.py t5x_folders.zip
    python tools/record_t5x.py t5x_one_store.zip --ocdbt
"""

import argparse
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import jax
from flax import serialization

FILES = Path(__file__).parents[1] / "optax_bridge/checkpoints/testdata"


def main() -> None:
    """Writes the checkpoints into one archive."""
    # Where TensorFlow is missing, its substitute is in Orbax's way.
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorflow"]:
        del sys.modules[name]
    import orbax.checkpoint as ocp

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive")
    parser.add_argument("--ocdbt", action="store_true", help="all arrays in one store")
    options = parser.parse_args()
    settings: Any = {"use_ocdbt": True} if options.ocdbt else {}  # unknown to the older one
    handler = ocp.PyTreeCheckpointHandler(**settings)
    with tempfile.TemporaryDirectory() as folder:
        for name in ("adafactor", "adam_bfloat16"):
            tree = serialization.msgpack_restore((FILES / f"{name}.msgpack").read_bytes())
            state = {
                "_optimizer": jax.tree_util.tree_map(jax.numpy.asarray, tree),
                "params_axes": None,
                "flax_mutables": {},
                "flax_mutables_axes": None,
            }
            path = Path(folder, name, "checkpoint_4", "state")
            path.parent.mkdir(parents=True)
            ocp.Checkpointer(handler).save(path, state)
        with zipfile.ZipFile(FILES / options.archive, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(str(file.relative_to(folder)))  # without a date
                archive.writestr(entry, file.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()

"""Writes the checkpoints of this folder with the genuine flax 0.5.3, as its programs did.

    reference/bin/python tools/record_checkpoints.py

or `nox -s reference`; equivalence_tests/reference/README.md says how to make that environment.
Recording again gives the same bytes on the same kind of processor.
"""

from __future__ import annotations

import dataclasses
import os
import types
import warnings
from pathlib import Path
from typing import Any

from optax_bridge.metadata.trees import Params

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import flax
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import jax_utils, optim, serialization, struct  # pyright: ignore[reportAttributeAccessIssue]
    from flax.core import freeze

# flax 0.5.3's serialization asks jax.xla for a class that jax 0.4.13 calls jax.Array.
jax.__dict__["xla"] = types.SimpleNamespace(DeviceArray=jax.Array)

STEPS = 4

OPTIMIZERS = {
    "adabelief": lambda: optim.AdaBelief(1e-2),
    "adadelta": lambda: optim.Adadelta(1.0),
    "adafactor": lambda: optim.Adafactor(0.1, beta1=0.9, min_dim_size_to_factor=3),
    "adagrad": lambda: optim.Adagrad(1e-2),
    "adam": lambda: optim.Adam(1e-2),
    "adamw": lambda: optim.Adam(1e-2, weight_decay=0.1),
    "gradient_descent": lambda: optim.GradientDescent(0.1),
    "lamb": lambda: optim.LAMB(1e-2, weight_decay=0.1),
    "lars": lambda: optim.LARS(1.0),
    "momentum": lambda: optim.Momentum(0.1, beta=0.9),
    "multi_optimizer": lambda: optim.MultiOptimizer(
        (_ending("kernel"), optim.Adam(1e-2)), (_ending("bias"), optim.Momentum(0.1))
    ),
    "rmsprop": lambda: optim.RMSProp(1e-2),
    "rmsprop_centered": lambda: optim.RMSProp(1e-2, centered=True),
    "weight_norm": lambda: optim.WeightNorm(optim.Adam(1e-2)),
}


@struct.dataclass
class GanState:
    """A training state as programs had them: two optimizers and what else there is."""

    step: Any
    generator: Any
    discriminator: Any
    batch_stats: Any


def _ending(name: str) -> Any:
    return optim.ModelParamTraversal(lambda path, _: path.endswith(name))


def params(dtype: Any = np.float32) -> dict[str, Any]:
    """Parameters of a small model, drawn from a fixed seed."""
    rng = np.random.default_rng(5)
    return {
        "dense": {
            "kernel": jnp.asarray(rng.normal(size=(4, 3)), dtype),
            "bias": jnp.asarray(rng.normal(size=(3,)), dtype),
        },
        "head": {"kernel": jnp.asarray(rng.normal(size=(3, 5)), dtype)},
        "scale": jnp.asarray(rng.normal(size=(3,)), dtype),
    }


def train(definition: Any, target: Params, **create: Any) -> Any:
    """An optimizer after `STEPS` steps on gradients from a fixed seed."""
    optimizer = definition.create(target, **create)
    rng = np.random.default_rng(6)
    for _ in range(STEPS):
        grads = jax.tree_util.tree_map(
            lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), leaf.dtype), target
        )
        optimizer = jax.jit(lambda opt, g: opt.apply_gradient(g))(optimizer, grads)
    return optimizer


def main() -> None:
    """Writes every file."""
    if flax.__version__ != "0.5.3":
        raise SystemExit(f"record.py needs flax 0.5.3, found {flax.__version__}")
    warnings.simplefilter("ignore")
    here = Path(__file__).resolve().parents[1] / "optax_bridge/checkpoints/testdata"
    files = {name: train(make(), params()) for name, make in OPTIMIZERS.items()}
    files["adam_bfloat16"] = train(optim.Adam(1e-2), params(jnp.bfloat16))
    files["focus"] = train(optim.Momentum(0.1), params(), focus=_ending("kernel"))
    files["replicated"] = jax_utils.replicate(files["adam"], devices=jax.local_devices())
    files["tuple"] = (files["adam"], {"mean": np.ones(3, np.float32)})
    files["dataclass"] = GanState(
        step=4,
        generator=files["adafactor"],
        discriminator=files["lars"],
        batch_stats={"dense": {"mean": np.ones(3, np.float32)}},
    )
    files["dictionary"] = {
        "optimizer": files["adagrad"],
        "step": jnp.asarray(STEPS, jnp.int32),
        "batch_stats": {"dense": {"mean": np.ones(3, np.float32)}},
    }
    files["pre_linen"] = train(optim.Adagrad(1e-2), {"params": params()})
    files["params_only"] = params()
    files["adafactor_bfloat16"] = train(OPTIMIZERS["adafactor"](), params(jnp.bfloat16))
    files["weight_norm_momentum"] = train(optim.WeightNorm(optim.Momentum(0.1)), params())
    files["groups_of_none_and_one"] = train(
        optim.MultiOptimizer(
            (_ending("kernel"), optim.Adam(1e-2)),
            (_ending("temperature"), optim.Momentum(0.1)),
            (_ending("nothing"), optim.RMSProp(1e-2)),
        ),
        {**params(), "temperature": jnp.asarray(1.5, jnp.float32), "frozen": {}},
    )
    files["frozen_dict"] = train(optim.Adagrad(1e-2), freeze(params()))
    files["list"] = train(
        optim.Adam(1e-2), [jnp.ones((3, 4)), {"a": jnp.ones(2)}, (jnp.ones(1), jnp.zeros((2, 2)))]
    )
    files["bare_array"] = train(optim.Momentum(0.1), jnp.ones((3, 4)))
    files["no_elements"] = train(optim.Adam(1e-2), {"w": jnp.ones((3, 2)), "e": jnp.zeros((0, 4))})
    files["odd_names"] = train(
        optim.Adam(1e-2), {"a.b": jnp.ones(2), "a/b": jnp.ones(3), "..": {"": jnp.ones(4)}}
    )
    files["replicated_dataclass"] = jax_utils.replicate(
        dataclasses.replace(files["dataclass"], discriminator=None), devices=jax.local_devices()
    )
    files["values"] = {
        "optimizer": files["momentum"], "step": 70, "epoch": 3, "best": 0.93, "done": True,
        "note": "hello", "none": None, "params": {"old": np.ones(2, np.float32)},
        "seed": np.float64(2.5), "opt_state": np.int64(2**40),
    }  # fmt: skip
    for name, state in files.items():
        (here / f"{name}.msgpack").write_bytes(serialization.to_bytes(state))
    serialization.MAX_CHUNK_SIZE = 16  # so that a small file has chunked arrays, too
    (here / "chunked.msgpack").write_bytes(serialization.to_bytes(files["adam"]))
    print(f"{len(files) + 1} checkpoints in {here}")


if __name__ == "__main__":
    main()

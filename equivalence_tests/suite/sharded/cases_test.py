"""The transformer on eight devices and in two processes: identical where no sum is split."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from equivalence_tests.suite.sharded import cases, training
from equivalence_tests.suite.sharded.partitioned import can_be_pinned, split_sums
from equivalence_tests.suite.sharded.training import GIVEN, TRAINING, ShardedCase
from optax_bridge.correspondence import Verdict

# Before JAX 0.10 sums that XLA joined to one kept the name of one of them.
XLA_KEEPS_NAMES = jax.__version_info__ >= (0, 10)

# One that splits no sum, one that splits none in the step, and one that splits both ways.
QUICK = (
    ShardedCase("adam", "optimizer state"),
    ShardedCase("adam", "FSDP", GIVEN),
    ShardedCase("adam", "data and tensor"),
)
CASES = [
    pytest.param(case, id=str(case), marks=() if case in QUICK else pytest.mark.full)
    for case in cases.cases(full=True)
]


@pytest.fixture(autouse=True)
def _eight_devices() -> None:
    if len(jax.devices("cpu")) < cases.DEVICES:
        pytest.skip("needs eight CPU devices: set JAX_PLATFORMS=cpu")
    if not can_be_pinned():
        pytest.skip(
            "this XLA chooses kernels by shapes and cannot be told not to: take a newer JAX"
        )


@pytest.mark.parametrize("case", CASES)
def test_identical_where_no_sum_is_split_else_rounding_and_it_says_which(case: ShardedCase):
    result = cases.run(case)
    assert not result.failed, result.note
    assert result.held, (result.comparison, result.claim)
    split = result.extra["split_sums"]
    assert (result.verdict is Verdict.IDENTICAL) == (not split)
    # What must be split: sums over the batch where it is, the products over hidden units, and
    # Adafactor's means over what is sharded; a layout that splits none of them must show none.
    elementwise = case.entry != "adafactor"
    unsplit = case.drive == GIVEN or case.layout in ("replicated", "optimizer state")
    assert (not split) == (elementwise and unsplit)
    if not XLA_KEEPS_NAMES:
        return
    assert any(name.startswith("optimizer") for name in split) != elementwise
    assert any(name.startswith("backward") for name in split) != unsplit


def test_training_moves_every_parameter_and_the_loss_falls():
    seen, _ = training.reference("adam", TRAINING)
    assert seen["loss"][-1] < 0.8 * seen["loss"][0]
    moved = [np.abs(v[-1] - v[0]).max() for k, v in seen.items() if k.startswith("params")]
    assert len(moved) == 23
    assert min(moved) > 1e-3


def test_a_parameter_without_a_gradient_is_found():
    names = training.vanishing("momentum")
    assert {name.rsplit("/", 3)[-2:][0] for name in names} == {"key"}
    assert all(name.endswith("key/bias") for name in names)


MATRIX = jnp.ones((8, 16))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x.sum(0), ["optimizer reduce_sum"]),
        (lambda x: x.T @ x, ["optimizer dot_general"]),
        (lambda x: (x.sum(0), x.T @ x), ["optimizer dot_general", "optimizer reduce_sum"]),
        (lambda x: x.sum(1), []),
        (lambda x: x @ jnp.ones((16, 4)), []),
        (lambda x: x.max(0), []),
        (lambda x: x.astype(jnp.int32).sum(0), []),
        (jax.grad(lambda x: jnp.sum(jnp.sin(x))), []),
        (jax.grad(lambda x: jnp.sum(jnp.square(x.sum(0)))), ["forward reduce_sum"]),
    ],
    ids=[
        "sum", "product", "both", "along the other axis", "product along it", "largest", "integers",
        "gradient by element", "gradient of a sum",
    ],
)  # fmt: skip
def test_split_sums_of_a_program(function: Callable[..., object], expected: list[str]):
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("rows",))
    x = jax.device_put(MATRIX, NamedSharding(mesh, PartitionSpec("rows")))
    program = jax.jit(function).lower(x).compile().as_text()
    assert program is not None
    found = split_sums(program)
    assert found == expected if XLA_KEEPS_NAMES else bool(found) == bool(expected)

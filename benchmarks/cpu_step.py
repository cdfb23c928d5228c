"""Adam with decay on CPUs, in other words: what closes the gap to PyTorch's fused step.

XLA compiles a step into loops for the moments and for the parameter, which read and write more
arrays than one loop over all of them would. Each variant is the same arithmetic written or compiled
otherwise; it is timed in turn with PyTorch's and with the plain one, and its result is compared
with the plain one's, to the bit.

    python -m benchmarks.cpu_step FLAGS TREE DTYPE REPEATS
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas

import optax_bridge
from benchmarks import problem
from benchmarks.figures import Figure, NotRun, Outcome
from benchmarks.timing import Stepper, in_turn, interval, spread
from benchmarks.torch_fused import has_torch, torch_stepper
from optax_bridge.correspondence import ENTRIES
from optax_bridge.exact.one_loop import FLAG as MULTI_OUTPUT

SECTION = "CPU step"
RATE, DECAY = 1e-3, 0.01
BLOCK = 2**16  # elements: four arrays of them are 1 MiB, which a core's cache holds
LARGE, MANY = "16 x 1024x1024", "400 x 64x64"

_JOINING = ("one flat array", "leaves stacked by shape")
_JOINED = ("one_loop", "one_loop, one flat array")
# What is measured: tree, dtype, flags of XLA, variants; each in a process of its own. Of the many
# leaves, which take long to compile, only what joins them.
RUNS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        LARGE,
        "float32",
        "",
        (
            "as it is",
            "leaves in the opposite order",
            "a barrier behind the step",
            "moments computed twice",
            "a map over blocks that stay in the cache",
            *_JOINING,
        ),
    ),
    (
        LARGE,
        "float32",
        MULTI_OUTPUT,
        ("as it is", "moments computed twice", "a loop over blocks, in place", *_JOINED),
    ),
    *(
        (LARGE, "float32", flag, ("as it is",))
        for flag in (
            "--xla_cpu_use_fusion_emitters=false",
            "--xla_cpu_prefer_vector_width=512",
            "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
            "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_RUNTIME",
            "--xla_cpu_copy_insertion_use_region_analysis=true",
        )
    ),
    (MANY, "float32", "", ("as it is", *_JOINING)),
    (MANY, "float32", MULTI_OUTPUT, _JOINED),
    (LARGE, "bfloat16", "", ("as it is",)),
    (LARGE, "bfloat16", MULTI_OUTPUT, _JOINED),
    *(
        (LARGE, "bfloat16", flag, ("as it is",))
        for flag in (
            "--xla_cpu_prefer_vector_width=512",
            "--xla_cpu_max_isa=AVX512_BF16",
            "--xla_cpu_experimental_ynn_fusion_type=LIBRARY_FUSION_TYPE_ELTWISE",
        )
    ),
    (MANY, "bfloat16", "", ("as it is",)),
    (MANY, "bfloat16", MULTI_OUTPUT, _JOINED),
)

Step = Callable[[Any, Any], Any]


def _adam(state: Any, grads: Any) -> Any:
    """The exact recipe on whatever tree it is given."""
    return state.apply_gradients(grads=grads)


def _state(params: Any) -> Any:
    tx = optax_bridge.adam(RATE, weight_decay=DECAY)
    return optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)


def _plain(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    return _adam, _state(params), grads


def _last_first(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """The leaves in the opposite order."""

    def turned(tree: Any) -> Any:
        leaves = jax.tree.leaves(tree)[::-1]
        return {f"{number:05}": leaf for number, leaf in enumerate(leaves)}

    return _adam, _state(turned(params)), turned(grads)


def _barriers(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """Leaf after leaf: none begins before the one before it is done."""

    def step(state: Any, grads: Any) -> Any:
        new = state.apply_gradients(grads=grads)
        return jax.lax.optimization_barrier(new)

    return step, _state(params), grads


def _twice(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """The parameter from moments of its own, which the compiler does not know to be the same."""

    def step(state: Any, grads: Any) -> Any:
        again, given = jax.lax.optimization_barrier((state, grads))
        moments = state.apply_gradients(grads=grads)
        return moments.replace(params=again.apply_gradients(grads=given).params)

    return step, _state(params), grads


def _concatenated(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """One flat array of all leaves, kept so between steps."""

    def flat(tree: Any) -> Any:
        return {"all": jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])}

    return _adam, _state(flat(params)), flat(grads)


def _stacked(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """The leaves of a shape in one array, with a leading axis."""

    def by_shape(tree: Any) -> Any:
        groups: dict[Any, list[Any]] = {}
        for leaf in jax.tree.leaves(tree):
            groups.setdefault(leaf.shape, []).append(leaf)
        return {str(shape): jnp.stack(leaves) for shape, leaves in groups.items()}

    return _adam, _state(by_shape(params)), by_shape(grads)


def _blocks(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """One flat array, block by block: each is read once and stays in the cache until it is done."""
    _, state, flat = _concatenated(params, grads)
    size = flat["all"].size

    def step(state: Any, grads: Any) -> Any:
        count = size // BLOCK
        if count < 2 or size % BLOCK:
            return state.apply_gradients(grads=grads)

        def cut(leaf: Any) -> Any:
            return leaf.reshape(count, BLOCK) if leaf.size == size else leaf

        def one(block: Any) -> Any:
            params, opt_state, grads = block
            own = state.replace(params=params, opt_state=opt_state)
            new = own.apply_gradients(grads=grads)
            return new.params, new.opt_state

        whole = jax.tree.map(cut, (state.params, state.opt_state, grads))
        split = jax.tree.map(lambda leaf: leaf.ndim == 2, whole)
        shared = [
            leaf for leaf, s in zip(*map(jax.tree.leaves, (whole, split)), strict=True) if not s
        ]

        def from_split(leaves: Any) -> Any:
            parts, others = iter(leaves), iter(shared)
            filled = [next(parts) if s else next(others) for s in jax.tree.leaves(split)]
            return one(jax.tree.unflatten(jax.tree.structure(whole), filled))

        leaves = [leaf for leaf in jax.tree.leaves(whole) if leaf.ndim == 2]
        params, opt_state = jax.lax.map(from_split, leaves)
        like = (state.params, state.opt_state)
        params, opt_state = jax.tree.map(
            lambda new, old: new.reshape(old.shape) if old.size == size else new[0],
            (params, opt_state),
            like,
        )
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state)

    return step, state, flat


def _blocks_in_place(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """One flat array, block by block, each written back to where it was read."""
    _, state, flat = _concatenated(params, grads)
    size = flat["all"].size

    def step(state: Any, grads: Any) -> Any:
        if size < 2 * BLOCK or size % BLOCK:
            return state.apply_gradients(grads=grads)

        def one(index: Any, trees: Any) -> Any:
            def cut(leaf: Any) -> Any:
                whole = leaf.size == size
                return jax.lax.dynamic_slice(leaf, (index * BLOCK,), (BLOCK,)) if whole else leaf

            def put(leaf: Any, new: Any) -> Any:
                whole = leaf.size == size
                return jax.lax.dynamic_update_slice(leaf, new, (index * BLOCK,)) if whole else leaf

            params, opt_state = jax.tree.map(cut, trees)
            own = state.replace(params=params, opt_state=opt_state)
            new = own.apply_gradients(grads=jax.tree.map(cut, grads))
            return jax.tree.map(put, trees, (new.params, new.opt_state))

        trees = (state.params, state.opt_state)
        params, opt_state = jax.lax.fori_loop(0, size // BLOCK, one, trees)
        opt_state = opt_state._replace(count=state.opt_state.count + 1)
        return state.replace(step=state.step + 1, params=params, opt_state=opt_state)

    return step, state, flat


def _one_loop(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """The option of the package."""
    tx = optax_bridge.one_loop(optax_bridge.adam(RATE, weight_decay=DECAY))
    state = optax_bridge.TrainState.create(apply_fn=None, params=params, tx=tx)
    return _adam, state, grads


def _one_loop_flat(params: Any, grads: Any) -> tuple[Step, Any, Any]:
    """The same on one flat array."""
    _, state, flat = _concatenated(params, grads)
    return _one_loop(state.params, flat)


VARIANTS: dict[str, Callable[[Any, Any], tuple[Step, Any, Any]]] = {
    "as it is": _plain,
    "leaves in the opposite order": _last_first,
    "a barrier behind the step": _barriers,
    "moments computed twice": _twice,
    "one flat array": _concatenated,
    "leaves stacked by shape": _stacked,
    "a map over blocks that stay in the cache": _blocks,
    "a loop over blocks, in place": _blocks_in_place,
    "one_loop": _one_loop,
    "one_loop, one flat array": _one_loop_flat,
}


def measure(quick: bool) -> Iterator[Outcome]:
    """Every run; quick: two variants in this process."""
    if not has_torch():
        yield NotRun(SECTION, "variants against PyTorch's fused step", "torch is not installed")
        return
    if quick:
        few = ("as it is", "one flat array")
        yield from _figures(_timed(problem.QUICK_TREE, "float32", few, 2), "tiny", "float32", "")
        return
    for tree, dtype, flags, names in RUNS:
        yield from _in_a_process(tree, dtype, flags, names)
    yield from _kernels()


def _kernels() -> Iterator[NotRun]:
    """Kernels of one's own, and why there is none."""
    ones = jnp.ones(8)

    def double(read: Any, written: Any) -> None:
        written[...] = 2 * read[...]

    try:
        pallas.pallas_call(double, out_shape=ones)(ones)
        why = "it compiles for CPUs here: to be tried"
    except (ValueError, NotImplementedError) as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
    yield NotRun(SECTION, "a Pallas kernel", why)
    why = (
        "no kept package has one; one of one's own needs a compiler where it is installed. A loop "
        "by numba, outside of JAX and its bits not compared, took 1.15 of PyTorch's time for Adam "
        "in bfloat16 on one flat array, rounding after every operation; how jax.ffi could call it "
        "was not tried"
    )
    yield NotRun(SECTION, "a kernel called by jax.ffi", why)


def _timed(tree: str, dtype: str, names: tuple[str, ...], repeats: int) -> dict[str, Any]:
    """Seconds of each turn by candidate, and a fingerprint of each variant's result."""
    params = problem.tree(tree, dtype)
    grads = problem.gradients(params)
    made = {name: Stepper(*VARIANTS[name](params, grads)) for name in names}
    candidates: dict[str, Callable[[], float]] = {**made}
    fused = torch_stepper(ENTRIES["adam"], params, decay=DECAY)
    if fused is not None:
        candidates["torch"] = fused
    for stepper in made.values():
        for _ in range(3):  # as many in every process, which the turns are not
            stepper()
    prints = {name: _fingerprint(stepper.state_and_gradients[0]) for name, stepper in made.items()}
    seconds = in_turn(candidates, repeats, seconds=2.0 + len(candidates))
    moved = {name: _mib_accessed(stepper) for name, stepper in made.items()}
    return {"seconds": seconds, "prints": prints, "moved": moved}


def _mib_accessed(stepper: Stepper) -> float:
    """What XLA counts that the program's loops read and write."""
    cost: Any = stepper.program.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return cost["bytes accessed"] / 2**20


def _fingerprint(state: Any) -> list[int]:
    """The same for the same numbers, however the leaves are ordered or joined."""
    trees = (state.params, *(x for x in state.opt_state if jax.tree.leaves(x)))
    return [_sum_of_sorted(jax.tree.leaves(tree)) for tree in trees]


def _sum_of_sorted(leaves: list[Any]) -> int:
    arrays = [np.asarray(leaf).reshape(-1) for leaf in leaves]
    words = np.sort(np.concatenate([x.view(f"uint{8 * x.itemsize}") for x in arrays]))
    return int(words.astype(np.uint64) @ np.arange(1, len(words) + 1, dtype=np.uint64))


def _in_a_process(tree: str, dtype: str, flags: str, names: tuple[str, ...]) -> Iterator[Outcome]:
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    module = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu_step"]
    command = [*module, flags, tree, dtype, ",,".join(names), "40"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        why = "this XLA does not know the flag" if "Unknown flag" in done.stderr else "it failed"
        yield NotRun(SECTION, f"{tree}, {dtype}, {flags}", why)
        return
    yield from _figures(json.loads(done.stdout), tree, dtype, flags)


@functools.cache
def _plain_prints() -> dict[tuple[str, str], list[int]]:
    """By tree and dtype, of the plain variants of this run."""
    return {}


def _figures(found: dict[str, Any], tree: str, dtype: str, flags: str) -> Iterator[Figure]:
    seconds, prints, plain = found["seconds"], found["prints"], _plain_prints()
    if not flags:
        plain[tree, dtype] = prints["as it is"]
    for name in prints:
        each = [a / b for a, b in zip(seconds[name], seconds["torch"], strict=True)]
        same = prints[name] == plain.get((tree, dtype))
        given = flags and ", " + flags.rpartition("options=")[2].removeprefix("--")
        yield Figure(
            SECTION,
            f"{tree}, {dtype}: {name}{given}",
            "variant / torch fused",
            interval(each),
            1e3 * spread(seconds["torch"]).median,
            bar=1.0 if name.startswith("one_loop") else None,
            note=f"{'the same' if same else 'other'} bits; {found['moved'][name]:.0f} MiB accessed",
        )


def main(flags: str, tree: str, dtype: str, names: str, repeats: str) -> None:
    """Prints what a process measured under its flags, which are in its environment already."""
    del flags
    print(json.dumps(_timed(tree, dtype, tuple(names.split(",,")), int(repeats))))


if __name__ == "__main__":
    main(*sys.argv[1:])

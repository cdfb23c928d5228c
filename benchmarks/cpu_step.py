"""Adam with decay on CPUs, in other words: what might close the gap to PyTorch's fused step.

XLA compiles a step into loops for the moments and for the parameter, which read and write more
arrays than one loop over all of them would. Each variant is the same arithmetic written or compiled
otherwise; it is timed in turn with PyTorch's and with the plain one, and its result is compared
with the plain one's, to the bit.

    python -m benchmarks.cpu_step FLAGS TREE REPEATS      (one set of flags; prints JSON)
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import optax_bridge
from benchmarks import problem
from benchmarks.figures import Figure, NotRun, Outcome
from benchmarks.timing import Stepper, in_turn, spread
from benchmarks.torch_fused import has_torch, torch_stepper
from optax_bridge.correspondence import ENTRIES

SECTION = "CPU step"
RATE, DECAY = 1e-3, 0.01
BLOCK = 2**16  # elements: four arrays of them are 1 MiB, which a core's cache holds

# Flags of XLA, each tried for itself in a process of its own; the variants only without any.
#
# XLA joins loops that read the same arrays only where it is told to (MULTI_OUTPUT): the moments'
# then, and 9 arrays move in place of 10. If the parameter's loop computes the moments once more, it
# reads the same arrays as theirs: one loop, 7 arrays, as few as there can be. But there the
# compiler contracts the other product of `b1 * mu + (1 - b1) * g` with the sum: 1 ULP a step.
MULTI_OUTPUT = "--xla_backend_extra_options=xla_cpu_use_multi_output_fusion=true"
FLAGS = (
    "",
    MULTI_OUTPUT,
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_scheduler_type=CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    "--xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_RUNTIME",
    "--xla_cpu_copy_insertion_use_region_analysis=true",
)
TREES = ("16 x 1024x1024", "400 x 64x64")
# Of the many leaves, which take long to compile, only what joins them.
OF_MANY = ("as it is", "one flat array", "leaves stacked by shape")
UNDER_FLAGS = {MULTI_OUTPUT: ("as it is", "moments computed twice")}

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


VARIANTS = {
    "as it is": _plain,
    "leaves in the opposite order": _last_first,
    "a barrier behind the step": _barriers,
    "moments computed twice": _twice,
    "one flat array": _concatenated,
    "leaves stacked by shape": _stacked,
    "a map over blocks that stay in the cache": _blocks,
}


def measure(quick: bool) -> Iterator[Outcome]:
    """Every variant without flags, and every flag; quick: two variants in this process."""
    if not has_torch():
        yield NotRun(SECTION, "variants against PyTorch's fused step", "torch is not installed")
        return
    if quick:
        few = {name: VARIANTS[name] for name in ("as it is", "one flat array")}
        yield from _figures(_timed(problem.QUICK_TREE, few, 2), problem.QUICK_TREE, "")
        return
    for tree in TREES:
        for flags in FLAGS if tree == TREES[0] else FLAGS[:2]:
            yield from _in_a_process(tree, flags)


def _timed(tree: str, variants: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Seconds of each turn by candidate, and a fingerprint of each variant's result."""
    params = problem.tree(tree)
    grads = problem.gradients(params)
    made = {}
    for name, variant in variants.items():
        step, state, given = variant(params, grads)
        made[name] = Stepper(step, state, given)
    candidates: dict[str, Callable[[], float]] = {**made}
    fused = torch_stepper(ENTRIES["adam"], params, decay=DECAY)
    if fused is not None:
        candidates["torch"] = fused
    for stepper in made.values():
        for _ in range(3):  # as many in every process, which the turns are not
            stepper()
    prints = {name: _fingerprint(stepper.state_and_gradients[0]) for name, stepper in made.items()}
    seconds = in_turn(candidates, repeats, seconds=6.0)
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
    words = [
        np.concatenate([np.asarray(x).reshape(-1).view(np.uint32) for x in jax.tree.leaves(tree)])
        for tree in trees
    ]
    return [int(np.sort(word).astype(np.uint64) @ np.arange(1, len(word) + 1, dtype=np.uint64))
            for word in words]  # fmt: skip


def _in_a_process(tree: str, flags: str) -> Iterator[Outcome]:
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cpu_step", flags, tree, "30"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        why = "this XLA does not know the flag" if "Unknown flag" in done.stderr else "it failed"
        yield NotRun(SECTION, f"{tree}, {flags}", why)
        return
    yield from _figures(json.loads(done.stdout), tree, flags)


_PLAIN_PRINTS: dict[str, list[int]] = {}


def _figures(found: dict[str, Any], tree: str, flags: str) -> Iterator[Figure]:
    seconds, prints = found["seconds"], found["prints"]
    if not flags:
        _PLAIN_PRINTS[tree] = prints["as it is"]
    for name in prints:
        each = [a / b for a, b in zip(seconds[name], seconds["torch"], strict=True)]
        same = prints[name] == _PLAIN_PRINTS.get(tree)
        yield Figure(
            SECTION,
            f"{tree}: {name}{flags and ', '}{flags}",
            "variant / torch fused",
            spread(each),
            1e3 * spread(seconds["torch"]).median,
            bar=1.0,
            note=f"{'the same' if same else 'other'} bits; {found['moved'][name]:.0f} MiB accessed",
        )


def main(flags: str, tree: str, repeats: str) -> None:
    """Prints what a process measured under its flags."""
    names = tuple(VARIANTS) if tree == TREES[0] else OF_MANY
    names = UNDER_FLAGS.get(flags, ("as it is",)) if flags else names
    variants = {name: VARIANTS[name] for name in names}
    print(json.dumps(_timed(tree, variants, int(repeats))))


if __name__ == "__main__":
    main(*sys.argv[1:])

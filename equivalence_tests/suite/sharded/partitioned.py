"""Compiled programs on several devices: which sums they split, and what XLA chooses by shapes."""

import functools
import re

import jax
import jax.numpy as jnp

# XLA's algebraic simplifier makes `x * (1 / c)` of `x / c` in a program for one device and leaves
# it in the same program for eight; the CPU's YNN library takes over sums and products of matrices
# from a size on, which a part of an array does not reach. Without both, programs that split no sum
# give the same bits on any number of devices.
_CHOICES = {"xla_disable_hlo_passes": "algsimp", "xla_cpu_experimental_ynn_fusion_type": ""}


def split_sums(program: str) -> list[str]:
    """The sums of floating-point numbers that a compiled program splits over devices."""
    roots = re.findall(r"^%?([\w.\-]+) \([^\n]*\{\n(?:(?!\}).*\n)*?\s*ROOT ([^\n]*)", program, re.M)
    adding = {name for name, root in roots if re.search(r"= (?:f|bf)\d+\[\]\S* add\(", root)}
    sums: list[str] = []
    for line in program.splitlines():
        reducer = re.search(
            r" (?:all-reduce|reduce-scatter)(?:-start)?\(.*to_apply=%?([\w.\-]+)", line
        )
        if reducer is None or reducer[1] not in adding:
            continue
        named = re.search(r'op_name="([^"]*)"', line)
        sums += _operations(named[1]) if named else ["unnamed"]
    return sorted(set(sums))


def _operations(name: str) -> list[str]:
    """The operations in the name that XLA gives to one or to several that it joined."""
    joined = re.fullmatch(r"(.*/)\((.*)\)", name)
    names = [joined[1] + part for part in joined[2].split(":")] if joined else [name]
    operations = []
    for one in names:
        part = "backward" if "transpose(" in one else "forward" if "jvp(" in one else "optimizer"
        steps = [step for step in one.split("/") if not re.search(r"\(.*\)", step)]
        operations.append(f"{part} {'/'.join(steps)}")
    return operations


@functools.cache
def compiler_options() -> dict[str, bool | str]:
    """Returns the pinned ones of XLA's choices, of those that this version of it knows."""
    options = {}
    for name, value in _CHOICES.items():
        try:
            jax.jit(jnp.negative, compiler_options={name: value}).lower(0.0).compile()
        except jax.errors.JaxRuntimeError:  # an older XLA
            continue
        options[name] = value
    return options


def can_be_pinned() -> bool:
    """True if all can be pinned that is known to tell layouts apart; in an older XLA it cannot."""
    return compiler_options().keys() == _CHOICES.keys()

"""The memory's speed: bytes read and written back by all cores, which no step can beat."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def mover(moved: int) -> Callable[[], float]:
    """What reads and writes so many bytes in all, with as many threads as there are cores.

    In place, as a step with its state donated does: to write elsewhere would first read that.

    Returns:
      What does it once and returns the seconds.
    """
    threads = os.cpu_count() or 1
    size = max(moved // 8, threads)
    values = np.ones(size, np.float32)
    parts = [
        values[size * index // threads : size * (index + 1) // threads] for index in range(threads)
    ]
    pool = ThreadPoolExecutor(threads)

    def move() -> float:
        start = time.perf_counter()
        if values.nbytes < 2**20:  # to wake the others would take longer
            np.negative(values, out=values)
        else:
            list(pool.map(lambda part: np.negative(part, out=part), parts))
        return time.perf_counter() - start

    return move

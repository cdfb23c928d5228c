"""Starting a program in one process of several."""

import logging
import socket
from typing import Any

import jax

_log = logging.getLogger(__name__)
_is_set_up = False


def setup(
    *,
    jax_backend: str,
    distributed_coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    initialization_timeout: int | None = None,
    prng_impl: str = "rbg",
) -> None:
    """Prepares JAX, before anything else of it is used; at most once it connects the processes.

    Args:
      jax_backend: "cpu", "gpu" or "tpu".
      distributed_coordinator: `host:port` of process 0; may be None on TPUs, which know, and if
        there is one process.
      num_processes: how many there are.
      process_id: which this is.
      initialization_timeout: seconds to wait for the others.
      prng_impl: of new keys. "rbg" is fast on TPUs; numbers of "threefry2x32" do not depend on
        the mesh.

    Raises:
      ValueError: `num_processes` without `process_id` or the other way round, or several processes
        without a coordinator.
    """
    global _is_set_up
    jax.config.update("jax_default_prng_impl", prng_impl)
    if (num_processes is None) != (process_id is None):
        raise ValueError(
            f"setup: num_processes ({num_processes}) and process_id ({process_id}) come together"
        )
    alone = distributed_coordinator is None and num_processes is None
    if _is_set_up or (alone and jax_backend in ("cpu", "gpu")):
        return
    if jax_backend in ("cpu", "gpu") and distributed_coordinator is None:
        if num_processes != 1:
            raise ValueError(
                f"setup: {num_processes} processes need distributed_coordinator, host:port of "
                "process 0"
            )
        distributed_coordinator = f"localhost:{free_port()}"
    timeout: dict[str, Any] = {}
    if initialization_timeout is not None:
        timeout["initialization_timeout"] = initialization_timeout
    jax.distributed.initialize(
        coordinator_address=distributed_coordinator,
        num_processes=num_processes,
        process_id=process_id,
        **timeout,
    )
    _is_set_up = True
    _log.info("process %d of %d", jax.process_index(), jax.process_count())


def free_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]

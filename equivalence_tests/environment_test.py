"""The flags that a process is started with."""

import pytest

from equivalence_tests.environment import xla_flags


def test_the_devices_are_set_beside_the_user_s_own_flags(monkeypatch: pytest.MonkeyPatch):
    count = "--xla_force_host_platform_device_count"
    monkeypatch.setenv("XLA_FLAGS", f"--one=1 {count}=2 --two")
    assert xla_flags(4) == f"--one=1 --two {count}=4"

"""Which addresses only this machine reaches."""

import pytest

from rlinf.utils.loopback import is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1", "[::1]"]
)
def test_this_machine(host):
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.evil.org"]
)
def test_others(host):
    assert not is_loopback(host)

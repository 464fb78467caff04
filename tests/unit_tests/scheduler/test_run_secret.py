"""The secret of a run follows from Ray's token, and does not travel where there is one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from rlinf.scheduler.cluster.probe import probe_node
from rlinf.scheduler.errors import ClusterError
from rlinf.scheduler.run_secret import derive, new_run_secret, own_run_secret, read_token
from rlinf.scheduler.spec import RunSpec

TOKEN = "a-token-of-this-test"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home without a token, and no variable that names one."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def keep_token(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text(f"{TOKEN}\n")


def spec(secret: bytes, salt: bytes | None, **options: bool) -> RunSpec:
    return RunSpec("id", "space", secret, [], 0, 2, "/logs", {}, salt=salt, **options)


def test_it_is_the_standard_derivation():
    expected = HKDF(SHA256(), 32, salt=b"salt" * 8, info=b"rlinf: secret of run abc")
    assert derive(b"token", b"salt" * 8, "abc") == expected.derive(b"token")


def test_tokens_salts_and_runs_have_secrets_of_their_own():
    made = [derive(*args) for args in ((b"t", b"s", "1"), (b"u", b"s", "1"), (b"t", b"u", "1"))]
    assert len({*made, derive(b"t", b"s", "2")}) == 4


@pytest.mark.parametrize("where", ["variable", "named file", "home"])
def test_the_token_is_found_where_ray_looks(home, monkeypatch, where):
    if where == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    elif where == "home":
        keep_token(home)
    else:
        (home / "elsewhere").write_text(TOKEN)
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "elsewhere"))
    assert read_token() == TOKEN.encode()


def test_a_named_file_that_is_not_there_is_told(home, monkeypatch):
    keep_token(home)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nowhere/token")
    with pytest.raises(ClusterError, match="cannot be read from /nowhere/token: No such file"):
        read_token()


def test_without_rays_authentication_a_token_of_this_node_is_not_relied_on(home, monkeypatch):
    keep_token(home)
    assert new_run_secret("id").salt is None
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert new_run_secret("id").salt is None


@pytest.mark.parametrize("encryption", [False, True])
def test_the_secret_does_not_travel_and_is_derived_where_it_is_needed(
    home, monkeypatch, encryption
):
    keep_token(home)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    secret, salt = new_run_secret("id")
    sent = spec(secret, salt, encryption=encryption)
    assert (sent.tls is not None) == encryption
    travels = pickle.dumps(sent)
    assert secret not in travels and TOKEN.encode() not in travels
    taken = pickle.loads(travels)
    assert taken.secret == b""
    taken.derive_secret()
    assert taken.secret == secret == sent.secret


def test_a_secret_that_cannot_be_derived_travels(home):
    secret, salt = new_run_secret("id")
    taken = pickle.loads(pickle.dumps(spec(secret, salt)))
    taken.derive_secret()
    assert taken.secret == secret and salt is None


def test_a_node_without_a_token_says_so(home):
    with pytest.raises(ClusterError, match=r"this node has none \(RAY_AUTH_TOKEN, .*auth_token"):
        own_run_secret("id", b"salt")


def test_the_secret_is_not_shown():
    assert "hidden" not in repr(spec(b"hidden", b"hidden salt"))


def test_what_a_node_tells_of_its_environment_has_no_token(home, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert TOKEN not in repr(probe_node())


def test_another_process_derives_the_same(home):
    keep_token(home)
    secret, salt = new_run_secret("id", {"RAY_AUTH_MODE": "token"})
    program = (
        "import sys; from rlinf.scheduler.run_secret import own_run_secret; "
        "print(own_run_secret('id', bytes.fromhex(sys.argv[1])).hex())"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, salt.hex()],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert bytes.fromhex(said.stdout) == secret

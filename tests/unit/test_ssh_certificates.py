"""Certificates that a server cannot be made to show, as sshd itself would not take them."""

import base64
import subprocess
from pathlib import Path

import pytest

from hadar_cli.ssh import certificates


def keygen(*words: object) -> None:
    words = ("ssh-keygen", "-q", *map(str, words))
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)


def blob(path: Path) -> bytes:
    return base64.b64decode(path.read_text().split()[1])


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("host", "authority", "forger"):
        keygen("-t", "ed25519", "-N", "", "-f", tmp_path / name)
    return tmp_path


def signed(keys: Path, by: str, *words: str) -> bytes:
    keygen("-s", keys / by, "-I", "id", "-n", "box", *words, keys / "host.pub")
    return blob(keys / "host-cert.pub")


def test_a_good_one(keys):
    certificate = certificates.read(signed(keys, "authority", "-h"))
    assert certificate and certificate.objection("box") is None
    assert certificate.authority == blob(keys / "authority.pub")
    assert certificate.key == blob(keys / "host.pub")
    assert certificate.objection("other") == "it is for box"


def test_a_forged_signature_is_found_out(keys):
    forged = signed(keys, "forger", "-h").replace(
        blob(keys / "forger.pub"), blob(keys / "authority.pub")
    )
    certificate = certificates.read(forged)
    assert certificate and certificate.authority == blob(keys / "authority.pub")
    assert certificate.objection("box") == "its signature is wrong"


def test_a_changed_name_is_found_out(keys):
    certificate = certificates.read(signed(keys, "authority", "-h").replace(b"box", b"fox"))
    assert certificate and certificate.objection("fox") == "its signature is wrong"


def test_a_users_certificate_vouches_for_no_host(keys):
    certificate = certificates.read(signed(keys, "authority"))
    assert certificate and certificate.objection("box") == "it is a user's certificate"


def test_options_that_nobody_understands(keys):
    words = ("-h", "-O", "critical:only@example.com=moon")
    certificate = certificates.read(signed(keys, "authority", *words))
    assert certificate and "options" in str(certificate.objection("box"))


@pytest.mark.parametrize("cut", [4, 40, -1])
def test_a_piece_of_one_is_none(keys, cut):
    assert certificates.read(signed(keys, "authority", "-h")[:cut]) is None


def test_a_plain_key_is_none(keys):
    assert certificates.read(blob(keys / "host.pub")) is None

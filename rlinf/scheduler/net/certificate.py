"""The certificate of a run, by which its processes know each other under TLS.

Nothing of it travels: every process makes the same certificate and the same private key from the
run's secret. Whoever does not know the secret has neither, and is refused by both sides. All that
is private stays in memory.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import os
import ssl
import sys

from rlinf.scheduler.errors import ClusterError

_PURPOSE = b"rlinf: private key of the run's certificate"
_NAME = "rlinf run"
_SINCE = datetime.datetime(2000, 1, 1)
# RFC 5280: a certificate that does not expire. The clocks of hosts may differ.
_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59)


class RunTls:
    """What the processes of an encrypted run need for TLS 1.3.

    Args:
        secret: secret of the run.

    Attributes:
        server: for connections that were accepted.
        client: for connections that were made.
    """

    def __init__(self, secret: bytes):
        certificate, key = _make(secret)
        self.server = _context(ssl.PROTOCOL_TLS_SERVER, certificate, key)
        # Sessions are not resumed.
        self.server.num_tickets = 0
        self.client = _context(ssl.PROTOCOL_TLS_CLIENT, certificate, key)


def _context(protocol: int, certificate: bytes, key: bytes) -> ssl.SSLContext:
    """Make a context that shows the run's certificate, and accepts no other."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Hosts are known by addresses that may change; what counts is the certificate.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    # The library reads files only: this one has no name, and is gone at once.
    memory = os.memfd_create("rlinf-certificate", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)
    return context


def _make(secret: bytes) -> tuple[bytes, bytes]:
    """Return certificate and private key as PEM, always the same for a secret.

    Raises:
        ClusterError: the package that makes them is not there.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ClusterError(
            f"cluster.encryption needs the package cryptography, which {sys.executable} does not "
            f"have ({error}): install it there, or set cluster.encryption: false"
        ) from error

    seed = hmac.new(secret, _PURPOSE, hashlib.sha256).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_SINCE)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(
        encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(encoding), private

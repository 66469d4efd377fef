"""Certificates and keys of our own, written as files the way people have them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import trustme
from cryptography.hazmat.primitives import serialization

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pems:
    """A folder of them, and the authority behind server.crt and client.pem."""

    folder: Path
    ca: trustme.CA


def issue(ca: trustme.CA, folder: Path, name: str, *identities: str) -> None:
    """Write NAME.crt and NAME.key, a certificate of ca's for identities."""
    cert = ca.issue_cert(*identities, key_type=trustme.KeyType.ECDSA)
    (folder / f"{name}.crt").write_bytes(b"".join(pem.bytes() for pem in cert.cert_chain_pems))
    cert.private_key_pem.write_to_path(folder / f"{name}.key")


def write_pems(folder: Path) -> Pems:
    """Write into folder ca.crt; {server,client,other,broken}.{crt,key}; encrypted.key. Another CA issued other.crt."""
    ca = trustme.CA(key_type=trustme.KeyType.ECDSA)
    ca.cert_pem.write_to_path(folder / "ca.crt")
    issue(ca, folder, "server", "localhost", "127.0.0.1", "::1")
    issue(ca, folder, "client", "prometheus.example", "2001:db8::1")
    issue(trustme.CA(key_type=trustme.KeyType.ECDSA), folder, "other", "localhost")
    key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), password=None)
    (folder / "encrypted.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"swordfish"),
        )
    )
    for suffix, label in (("crt", "CERTIFICATE"), ("key", "PRIVATE KEY")):
        (folder / f"broken.{suffix}").write_text(f"-----BEGIN {label}-----\nAAAA\n-----END {label}-----\n")
    return Pems(folder, ca)

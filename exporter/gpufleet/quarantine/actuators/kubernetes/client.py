"""The API server through the official client: who we are to it, one request, and its answer as JSON.

Its typed models are not used: they drop what they do not know, and a node's taints must stay byte for byte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic
from urllib.parse import urlencode

import msgspec

from gpufleet import __version__
from gpufleet.quarantine.actuators.kubernetes.api import Json, Patch, Shape
from gpufleet.quarantine.actuators.kubernetes.places import Place
from gpufleet.quarantine.actuators.kubernetes.refusals import NotFoundError, UnavailableError, refusal
from gpufleet.small_file import read_small_file

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LONGEST_NAME = 253
_CONNECT_SECONDS = 2.0
_READ_SECONDS = 5.0
_PAGE = 500


class CredentialsError(Exception):
    """There is no way to an API server: says what is missing and what to do."""


class _PageMeta(msgspec.Struct):
    next_page: str = msgspec.field(name="continue", default="")


class _Page(msgspec.Struct, Generic[Shape]):
    items: list[Shape]
    metadata: _PageMeta


class Client:
    """An ``Api`` over HTTP. May be used by several threads."""

    def __init__(self, configuration: Any) -> None:  # noqa: ANN401 - the library ships no types
        from kubernetes.client.rest import RESTClientObject

        # The library's default is three more attempts, and it would follow a redirect with our token.
        configuration.retries = False
        self._configuration = configuration
        self._rest: Any = RESTClientObject(configuration)

    def get(self, place: Place) -> Json:
        """As Api."""
        return self._object(self._ask("get", "GET", place), "get", place)

    def each(self, place: Place, shape: type[Shape], *, labels: str = "", fields: str = "") -> Iterator[Shape]:
        """As Api."""
        asked = {"limit": str(_PAGE), "labelSelector": labels, "fieldSelector": fields}
        decoder = msgspec.json.Decoder(_Page[shape])  # type: ignore[valid-type]
        while True:
            content = self._ask("list", "GET", place, asked)
            try:
                page = decoder.decode(content)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UnavailableError(f"list {place}: its answer is not such a list: {error}") from error
            yield from page.items
            if not page.metadata.next_page:
                return
            asked["continue"] = page.metadata.next_page

    def create(self, place: Place, body: Json, *, dry_run: bool = False) -> Json:
        """As Api."""
        content = self._ask("create", "POST", place, _dry(dry_run), body)
        return self._object(content, "create", place)

    def replace(self, place: Place, body: Json) -> Json:
        """As Api."""
        return self._object(self._ask("update", "PUT", place, None, body), "update", place)

    def patch(self, place: Place, kind: Patch, body: Json | list[Json], *, dry_run: bool = False) -> Json:
        """As Api."""
        content = self._ask("patch", "PATCH", place, _dry(dry_run), body, kind)
        return self._object(content, "patch", place)

    def close(self) -> None:
        """Close the connections that are kept open."""
        self._rest.pool_manager.clear()

    def _ask(
        self,
        verb: str,
        method: str,
        place: Place,
        asked: dict[str, str] | None = None,
        body: Json | list[Json] | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        if not place.can_be:
            raise NotFoundError(f"{verb} {place}: no object can have such a name", 404, "NotFound")
        status, content = self._sent(verb, method, place, asked or {}, body, content_type)
        if 200 <= status < 300:
            return content
        raise refusal(verb, place, status, _status_of(content))

    def _sent(
        self,
        verb: str,
        method: str,
        place: Place,
        asked: dict[str, str],
        body: Json | list[Json] | None,
        content_type: str,
    ) -> tuple[int, bytes]:
        """HTTP's status and the whole body. Raises UnavailableError."""
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        query = urlencode({key: value for key, value in asked.items() if value})
        url = f"{self._configuration.host}{place.path}{'?' if query else ''}{query}"
        try:
            response = self._rest.request(
                method,
                url,
                headers=self._headers(content_type),
                body=body,
                _request_timeout=(_CONNECT_SECONDS, _READ_SECONDS),
            )
            # Older releases have read and decoded the body already, and have no method for it.
            return response.status, _bytes(response.read() if response.data is None else response.data)
        except ApiException as error:
            # Older releases raise for every refusal, all of them for TLS that fails (status 0).
            if error.status:
                return error.status, _bytes(error.body)
            raise UnavailableError(f"{verb} {place}: {self._configuration.host}: {_line(error.reason)}") from error
        except (HTTPError, ConfigException, OSError, UnicodeDecodeError) as error:
            raise UnavailableError(f"{verb} {place}: {self._configuration.host}: {_line(error)}") from error

    def _headers(self, content_type: str) -> dict[str, str]:
        headers = {
            "Accept": "application/json",
            "Content-Type": content_type,
            "User-Agent": f"gpufleet-quarantine/{__version__}",
        }
        # Asked for each request: the library reads a rotated token anew, at most once a minute.
        token = self._configuration.auth_settings().get("BearerToken")
        if token is not None:
            headers[token["key"]] = token["value"]
        return headers

    def _object(self, content: bytes, verb: str, place: Place) -> Json:
        try:
            found = json.loads(content)
        except ValueError as error:
            raise UnavailableError(f"{verb} {place}: its answer is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise UnavailableError(f"{verb} {place}: its answer is no object")
        return found


def own_namespace(account: Path = ACCOUNT) -> str:
    """The namespace of the pod that this is. Raises CredentialsError."""
    path = account / "namespace"
    try:
        found = read_small_file(path, _LONGEST_NAME).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CredentialsError(
            f"{path}: cannot be read: {error}; outside of a pod, name the ledger's namespace in the policy "
            f"(ledger: namespace)"
        ) from error
    if not Place("namespaces", found).can_be or not found:
        raise CredentialsError(f"{path}: is no namespace; name the ledger's in the policy (ledger: namespace)")
    return found


def connect(kubeconfig: Path | None = None, context: str | None = None) -> Client:
    """A client for the API server of ``kubeconfig``; without one for that of the cluster that this is a pod of, else
    for that of the default kubeconfig. Nothing is asked of it yet. Raises CredentialsError.
    """
    try:
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_incluster_config, load_kube_config
    except ImportError as error:
        raise CredentialsError(
            f"the Kubernetes client is missing ({error}): pip install 'gpufleet[quarantine]'"
        ) from error
    import yaml

    configuration = Configuration()
    where = str(kubeconfig) if kubeconfig else "the default kubeconfig"
    try:
        if kubeconfig is None and context is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
            where = "the service account of this pod"
            load_incluster_config(client_configuration=configuration)
            # The server is a neighbour: a proxy of the environment is for what lies outside.
            configuration.proxy = None
        else:
            load_kube_config(
                config_file=None if kubeconfig is None else str(kubeconfig),
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
    except (ConfigException, OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise CredentialsError(
            f"no way to a Kubernetes API server: {where}: {_line(error)}; run as a pod with a service account, or "
            f"name a kubeconfig"
        ) from error
    return Client(configuration)


def _dry(dry_run: bool) -> dict[str, str]:  # noqa: FBT001 - the one thing it turns into words
    return {"dryRun": "All"} if dry_run else {}


def _status_of(content: bytes) -> Json:
    """Kubernetes' Status; empty where it is something else, such as a proxy's page."""
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _bytes(body: str | bytes | None) -> bytes:
    return body.encode() if isinstance(body, str) else body or b""


def _line(error: object) -> str:
    """An error of the libraries on one line; theirs hold line feeds and addresses of objects."""
    return " ".join(str(error).split())[:500] or type(error).__name__

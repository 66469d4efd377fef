"""Keeps the picture of this node's pods: one list, then a watch that goes on from it, on a thread of its own.

Pods that have ended are kept until they are deleted: a kubelet before 1.34 lists their devices still, and only their
phase tells that they hold nothing.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Container, Mapping
from urllib.parse import quote, urlencode

from gpufleet.logs import OnChange
from gpufleet.model.claims import Pod
from gpufleet.model.snapshot import SourceHealth
from gpufleet.sources.pods.api_server import ApiError, ApiServer
from gpufleet.sources.pods.decoding import (
    MOST_PODS,
    Change,
    DecodingError,
    PodEvent,
    decode_event,
    decode_labels,
    decode_list,
)

log = logging.getLogger(__name__)

SOURCE = "pods"
GONE = 410
WATCH_SECONDS = 240
"""A watch is ended by the server after so long, which shows that it is still there."""
_LATE_SECONDS = 30.0
_LIST_SECONDS = 30.0
_LONGEST_LINE = 16 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_ACCEPT = "application/json"

Key = tuple[str, str]


class PodWatch:
    """This node's pods. Properties may be read from any thread; mappings are replaced whole."""

    def __init__(
        self,
        api: ApiServer,
        node: str,
        *,
        changed: Callable[[], None] = lambda: None,
        listed: Callable[[], None] = lambda: None,
        node_labels: Callable[[Mapping[str, str]], None] = lambda _: None,
        annotations: Container[str] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        watch_seconds: int = WATCH_SECONDS,
    ) -> None:
        """All three are called by the watch's thread: ``changed`` after a change, ``listed`` when everything that a
        list needed is free again, ``node_labels`` with the node's labels.

        ``annotations`` are those that are kept; without it, all. A node's pods have megabytes of them.
        ``chance`` gives numbers from 0 to 1: all nodes of a cluster must not come back at the same moment.
        """
        self.pods: Mapping[Key, Pod] = {}
        """By namespace and name."""
        self.health = SourceHealth(SOURCE, up=False, reason="has not been asked yet")
        self._api = api
        self._node = node
        self._changed = changed
        self._listed = listed
        self._node_labels = node_labels
        self._annotations = annotations
        self._monotonic = monotonic
        self._chance = chance
        self._watch_seconds = watch_seconds
        self._synced_at: float | None = None
        self._is_watching = False
        self._said = OnChange(log)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=SOURCE, daemon=True)

    # --- for other threads --------------------------------------------------------------------------------------------
    @property
    def synced_at(self) -> float | None:
        """Monotonic time until which ``pods`` is known to be true; now, while a watch is open."""
        return self._monotonic() if self._is_watching else self._synced_at

    @property
    def by_uid(self) -> Mapping[str, Pod]:
        """The same pods by UID."""
        return {pod.uid: pod for pod in self.pods.values()}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End soon; does not wait for a read that is under way."""
        self._ended.set()

    # --- the thread ---------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._ended.is_set():
            began = self._monotonic()
            try:
                version = self._list()
                self._listed()
                while not self._ended.is_set():
                    opened = self._monotonic()
                    version = self._follow(version)
                    if self._monotonic() - opened < _FIRST_PAUSE:
                        # A server or proxy that ends every watch at once is not asked a thousand times a second.
                        self._ended.wait(_FIRST_PAUSE)
            except (ApiError, DecodingError) as error:
                if not (isinstance(error, ApiError) and error.status == GONE):
                    self._failed(str(error))
            except Exception as error:
                log.exception("the watch of pods failed in a way that it should not")
                self._failed(f"{type(error).__name__}: {error}")
            finally:
                self._is_watching = False
            # Whoever worked for a while begins with a short pause again.
            pause = _FIRST_PAUSE if self._monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            self._ended.wait(pause * (0.5 + self._chance() / 2))

    def _list(self) -> str:
        self._read_node()
        # Version 0: what the server has in its memory will do. Without it each start of a fleet's exporters reads etcd.
        body = self._api.get(self._path(resourceVersion="0"), _ACCEPT, seconds=_LIST_SECONDS)
        pods, version = decode_list(body, self._annotations)
        if not version:
            raise DecodingError(f"{self._api.url}: a list without a resourceVersion: this is no API server")
        self._publish({(pod.namespace, pod.name): pod for pod in pods})
        return version

    def _read_node(self) -> None:
        try:
            labels = decode_labels(self._api.get(f"/api/v1/nodes/{quote(self._node)}", _ACCEPT, seconds=_LIST_SECONDS))
        except (ApiError, DecodingError) as error:
            # Prices by node labels need it and nothing else does: most service accounts may not read nodes.
            log.debug("the node's labels are not known", extra={"err": str(error)})
            return
        self._node_labels(labels)

    def _follow(self, version: str) -> str:
        """Watch until the server ends it; returns the version to go on from. Raises ApiError, DecodingError."""
        path = self._path(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=version,
            timeoutSeconds=str(self._watch_seconds),
        )
        with self._api.open(path, _ACCEPT, seconds=self._watch_seconds + _LATE_SECONDS) as response:
            self._is_watching = True
            self._well()
            for line in response.lines(_LONGEST_LINE):
                if not line.strip():
                    continue
                event = decode_event(line, self._annotations)
                if event.change is Change.FAILED:
                    raise ApiError(f"{self._api.url}: {event.code} {event.reason}", event.code)
                self._take(event)
                version = event.version or version
                if self._ended.is_set():
                    break
        self._synced_at = self._monotonic()
        self._is_watching = False
        return version

    def _take(self, event: PodEvent) -> None:
        pod = event.pod
        if pod is None:
            return
        key = (pod.namespace, pod.name)
        pods = dict(self.pods)
        if event.change is Change.REMOVED:
            # A pod of that name may have been made anew before the word of the old one's end came.
            if key not in pods or pods[key].uid != pod.uid:
                return
            del pods[key]
        elif pods.get(key) == pod or (key not in pods and len(pods) >= MOST_PODS):
            return
        else:
            pods[key] = pod
        self._publish(pods)

    def _publish(self, pods: Mapping[Key, Pod]) -> None:
        self._synced_at = self._monotonic()
        before, self.pods = self.pods, pods
        self._well()
        if before != pods:
            self._changed()

    def _well(self) -> None:
        if not self.health.up:
            self.health = SourceHealth(SOURCE, up=True)
        self._said.over("watch", "the API server tells of pods again")

    def _failed(self, reason: str) -> None:
        self.health = SourceHealth(SOURCE, up=False, reason=reason)
        self._said.failed("watch", "the API server does not tell of this node's pods", reason)

    def _path(self, **query: str) -> str:
        selector = f"spec.nodeName={self._node}"
        return f"/api/v1/pods?{urlencode({'fieldSelector': selector, **query})}"

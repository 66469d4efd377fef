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
        self._was_open = False
        self._version = ""
        self._gone = 0
        """Versions in a row that the server had forgotten."""
        self._said = OnChange(log)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=SOURCE, daemon=True)

    # --- for other threads --------------------------------------------------------------------------------------------
    @property
    def synced_at(self) -> float | None:
        """Monotonic time of the server's last word: a list, an event, a bookmark, the end of a watch."""
        return self._synced_at

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
                self._list()
                self._listed()
                while not self._ended.is_set():
                    self._follow_on()
            except (ApiError, DecodingError) as error:
                self._failed(error)
            except Exception as error:
                log.exception("the watch of pods failed in a way that it should not")
                self._failed(error)
            # Whoever worked for a while begins with a short pause again.
            pause = _FIRST_PAUSE if self._monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            self._ended.wait(pause * (0.5 + self._chance() / 2))

    def _follow_on(self) -> None:
        """One watch; a connection that is lost in its course is no reason to list again. Raises as ``_follow``."""
        opened = self._monotonic()
        self._was_open = False
        try:
            self._follow()
        except ApiError as error:
            if error.status or not self._was_open:
                raise
        if self._monotonic() - opened < _FIRST_PAUSE:
            # A server or proxy that ends every watch at once is not asked a thousand times a second.
            self._ended.wait(_FIRST_PAUSE)

    def _list(self) -> None:
        self._read_node()
        # Version 0: what the server has in its memory will do. Without it each start of a fleet's exporters reads etcd.
        # After a version that was gone it will not: its memory may be older than what we know.
        query = {} if self._gone else {"resourceVersion": "0"}
        pods, version = decode_list(
            self._api.get(self._path(**query), _ACCEPT, seconds=_LIST_SECONDS), self._annotations
        )
        if not version:
            raise DecodingError(f"{self._api.url}: a list without a resourceVersion: this is no API server")
        self._version = version
        self._publish({(pod.namespace, pod.name): pod for pod in pods})

    def _read_node(self) -> None:
        try:
            labels = decode_labels(self._api.get(f"/api/v1/nodes/{quote(self._node)}", _ACCEPT, seconds=_LIST_SECONDS))
        except (ApiError, DecodingError) as error:
            # Prices by node labels need it and nothing else does: most service accounts may not read nodes.
            log.debug("the node's labels are not known", extra={"err": str(error)})
            return
        self._node_labels(labels)

    def _follow(self) -> None:
        """Watch until the server ends it, or should have. Raises ApiError, DecodingError."""
        path = self._path(
            watch="1",
            allowWatchBookmarks="true",
            resourceVersion=self._version,
            timeoutSeconds=str(self._watch_seconds),
        )
        end = self._monotonic() + self._watch_seconds + _LATE_SECONDS
        with self._api.open(path, _ACCEPT, seconds=self._watch_seconds + _LATE_SECONDS) as response:
            self._was_open = True
            for line in response.lines(_LONGEST_LINE):
                if self._ended.is_set() or self._monotonic() > end:
                    return
                if not line.strip():
                    continue
                event = decode_event(line, self._annotations)
                if event.change is Change.FAILED:
                    raise ApiError(f"{self._api.url}: {event.code} {event.reason}", event.code)
                self._synced_at = self._monotonic()
                self._take(event)
                self._version = event.version or self._version
                self._well()
        self._synced_at = self._monotonic()
        self._well()

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
        if self._gone <= 1:
            self._is_up()
        if before != pods:
            self._changed()

    def _well(self) -> None:
        """A watch says something: its version is good."""
        self._gone = 0
        self._is_up()

    def _is_up(self) -> None:
        if not self.health.up:
            self.health = SourceHealth(SOURCE, up=True)
        self._said.over("watch", "the API server tells of pods again")

    def _failed(self, error: Exception) -> None:
        if isinstance(error, ApiError) and error.status == GONE:
            # Once in a while that is how things are: our version was forgotten. Again and again it is a failure.
            self._gone += 1
            if self._gone == 1:
                return
        is_ours = isinstance(error, (ApiError, DecodingError))
        reason = str(error) if is_ours else f"{type(error).__name__}: {error}"
        self.health = SourceHealth(SOURCE, up=False, reason=reason)
        self._said.failed("watch", "the API server does not tell of this node's pods", reason)

    def _path(self, **query: str) -> str:
        selector = f"spec.nodeName={self._node}"
        return f"/api/v1/pods?{urlencode({'fieldSelector': selector, **query})}"

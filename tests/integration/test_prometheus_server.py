"""The means to run Prometheus and promtool, tried on Prometheus itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.waiting import until

if TYPE_CHECKING:
    from tests.integration.conftest import StartPrometheus
    from tests.promtool import Promtool


def test_prometheus_scrapes_itself_and_answers_queries(prometheus: StartPrometheus) -> None:
    """A started server is ready, scrapes what it is told to and answers PromQL."""
    own = prometheus([]).url.removeprefix("http://")
    second = prometheus([{"job_name": "first", "static_configs": [{"targets": [own]}]}])

    (target,) = second.wait_until_up(1)

    assert target["scrapeUrl"] == f"http://{own}/metrics"
    assert until(lambda: second.value('up{job="first"}'), "the first sample is there") == 1.0
    assert second.value("absent_metric") is None


def test_a_target_that_cannot_be_scraped_is_told_with_its_error(prometheus: StartPrometheus) -> None:
    """A failed scrape shows as a target that is down, with the reason."""
    server = prometheus([{"job_name": "none", "static_configs": [{"targets": ["127.0.0.1:1"]}]}])

    (target,) = until(lambda: [each for each in server.targets() if each["health"] == "down"], "the target is down")

    assert "connection refused" in target["lastError"]
    with pytest.raises(TimeoutError, match="connection refused"):
        server.wait_until_up(1, seconds=0.1)


def test_a_configuration_that_prometheus_refuses_is_reported(prometheus: StartPrometheus) -> None:
    """A server that ends at once raises with what it logged."""
    with pytest.raises(ChildProcessError, match="nonsense"):
        prometheus([], config={"nonsense": 1})


def test_promtool_has_complaints_and_is_content(promtool: Promtool) -> None:
    """check_metrics is empty for good text, and quotes promtool where it has something to say."""
    assert promtool.check_metrics(b"# HELP x_total Things.\n# TYPE x_total counter\nx_total 1\n") == ""
    assert "counter metrics should have" in promtool.check_metrics(b"# HELP x Things.\n# TYPE x counter\nx 1\n")
    assert promtool.check_metrics(b"no metric text {\n")

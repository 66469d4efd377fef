"""``gpufleet demo`` and ``gpufleet simulate`` as processes, as a person starts them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from gpufleet.commands import demo, simulate
from tests.waiting import until

if TYPE_CHECKING:
    from types import TracebackType

    from tests.integration.conftest import StartPrometheus
    from tests.promtool import Promtool

NODES = 256
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_URL = re.compile(r"(http://127\.0\.0\.1:\d+)/")


class Running:
    """A command of gpufleet on a free port; a context manager that answers on entry."""

    def __init__(self, directory: Path, command: str, *flags: str) -> None:
        self._output = directory / "stdout"
        self._errors = directory / "stderr"
        self._arguments = [sys.executable, "-m", "gpufleet", command, "--web.listen-address=127.0.0.1:0", *flags]

    def __enter__(self) -> Self:
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(self._arguments, stdout=output, stderr=errors)
        self.url = until(self._announced, "the addresses are printed", seconds=60)
        return self

    def _announced(self) -> str | None:
        assert self.process.poll() is None, self._errors.read_text()
        found = _URL.search(self.said())
        return found[1] if found else None

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def said(self) -> str:
        """What it has printed for people."""
        return self._output.read_text()

    def logged(self) -> str:
        """What it has logged."""
        return self._errors.read_text()

    def get(self, path: str) -> str:
        """The body at a path."""
        with _DIRECT.open(f"{self.url}{path}", timeout=30) as answer:
            body: bytes = answer.read()
        return body.decode()

    def stop(self) -> int:
        """End it as a supervisor does; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def values(text: str, name: str) -> list[float]:
    """The values of all series of a name."""
    return [sample.value for family in parse_text(text) for sample in family.samples if sample.name == name]


def test_the_demo_is_one_command_to_a_running_exporter(tmp_path: Path) -> None:
    """It prints what to open; page and metrics answer, say that they are simulated, and it stops cleanly."""
    with Running(tmp_path, "demo") as running:
        text = until(
            lambda: text if len(values(text := running.get("/metrics"), "gpu_sm_active_ratio")) == 8 else "", "GPM"
        )

        assert f"{running.url}/metrics" in running.said()
        assert "llama3-pretrain" in running.said()
        assert values(text, "gpufleet_simulated") == [1]
        assert values(text, "gpu_up") == [1] * 8
        assert "simulated" in running.get("/").lower()
        assert running.get("/-/ready") == "ok\n"
        assert running.stop() == 0


def test_the_addresses_printed_are_those_that_answer(tmp_path: Path) -> None:
    """A web configuration with a password and no certificate is served, and announced, as plain HTTP."""
    web = tmp_path / "web.yml"
    web.write_text("basic_auth_users: {prometheus: $2b$04$Wez8jOL5kqMxTMxPjcipKu4PgE5uXAe4.qUQtQ8RPGU029dvhIIsS}\n")
    for command in ("demo", "simulate"):
        with Running(tmp_path, command, f"--web.config.file={web}") as running:
            with pytest.raises(urllib.error.HTTPError, match="401") as refused:
                running.get("/metrics")
            refused.value.close()
            assert running.stop() == 0


def test_the_demo_leaves_nothing_behind_and_is_quiesced_like_the_real_one(tmp_path: Path) -> None:
    """Its control socket is its own, so that a real exporter may run beside it; its state goes with it."""
    with Running(tmp_path, "demo", "--node.name=gpu-node-05", "--metrics.level=core") as running:
        found = re.search(r"--control\.socket=(\S+)", running.said())
        assert found
        socket = Path(found[1])
        until(lambda: values(running.get("/metrics"), "gpu_mig_info"), "slices are shown")
        quiesce = [sys.executable, "-m", "gpufleet", "quiesce", f"--control.socket={socket}"]
        assert subprocess.run(quiesce, check=False, capture_output=True).returncode == 0
        until(lambda: values(running.get("/metrics"), "gpufleet_quiesced") == [1], "it is quiesced")
        assert running.stop() == 0
        assert not socket.parent.exists()


def test_a_fleet_is_scraped_by_prometheus_without_a_failed_scrape(tmp_path: Path, prometheus: StartPrometheus) -> None:
    """256 nodes of 8 GPUs at standard level, three times as often as usual, found by service discovery."""
    with Running(tmp_path, "simulate", f"--nodes={NODES}", "--profile=h100-80gb-hbm3") as running:
        until(lambda: "every node has been read" in running.logged(), "every node was read", seconds=120)
        discovery = [{"job_name": "fleet", "honor_labels": True, "http_sd_configs": [{"url": f"{running.url}/sd"}]}]
        server = prometheus(discovery, scrape_interval="10s")
        server.wait_until_up(NODES, seconds=60)
        twice = f"count(count_over_time(up[5m]) >= 3) == {NODES}"
        until(lambda: server.value(twice), "each node was scraped three times", seconds=60, every=0.5)

        assert server.value("min(min_over_time(up[5m]))") == 1
        assert server.value("count(gpu_up)") == NODES * 8
        assert server.value("count(count by (uuid) (gpu_info))") == NODES * 8
        assert server.value("min(gpufleet_simulated)") == 1
        assert running.stop() == 0


def test_one_configuration_scrapes_all_that_a_scenario_has(tmp_path: Path, prometheus: StartPrometheus) -> None:
    """Nodes, model servers and the quarantine service are found by one discovery, each under its own job."""
    with Running(tmp_path, "simulate") as running:
        discovery = [{"job_name": "gpufleet", "honor_labels": True, "http_sd_configs": [{"url": f"{running.url}/sd"}]}]
        server = prometheus(discovery, scrape_interval="2s")
        server.wait_until_up(11, seconds=60)

        jobs = {each["metric"]["job"]: each["value"][1] for each in server.query("count by (job) (up == 1)")}
        assert jobs == {"gpufleet": "8", "vllm": "1", "sglang": "1", "gpufleet-quarantine": "1"}
        for name, count in (("train_steps_total", 4), ("nic_link_up", 56), ("gpufleet_quarantine_budget", 1)):
            assert server.value(f"count({name})") == count
        assert server.value('count({__name__="vllm:num_requests_running", job="vllm"})') == 6
        assert server.value('count({__name__="sglang:num_running_reqs", job="sglang"})') == 2
        assert running.stop() == 0


def test_promtool_has_no_complaint_about_any_kind_of_node(tmp_path: Path, promtool: Promtool) -> None:
    """Slices, lost links, several kinds of GPU: each node of the default scenario is well formed."""
    with Running(tmp_path, "simulate") as running:
        for number in range(1, 9):
            text = running.get(f"/node/gpu-node-0{number}/metrics")
            assert promtool.check_metrics(text.encode()) == ""


def test_promtool_has_no_complaint_about_what_is_beside_the_nodes(tmp_path: Path, promtool: Promtool) -> None:
    """Model servers and the quarantine service, all listed where the nodes are."""
    with Running(tmp_path, "simulate") as running:
        beside = [group["labels"] for group in json.loads(running.get("/sd")) if "job" in group["labels"]]
        assert [each["job"] for each in beside] == ["vllm", "sglang", "gpufleet-quarantine"]
        for each in beside:
            text = running.get(each["__metrics_path__"])
            # vLLM's and SGLang's names have a colon, as their programs write them.
            complaints = promtool.check_metrics(text.encode()).splitlines()
            assert [line for line in complaints if "should not contain ':'" not in line] == []
            assert text.startswith("# Simulated")


def test_a_fleet_answers_at_once_and_lists_its_nodes(tmp_path: Path) -> None:
    """A thousand nodes are there as soon as the process is, though none was read yet."""
    with Running(tmp_path, "simulate", "--nodes=1000", "--metrics.level=core", "--seed=7") as running:
        groups = json.loads(running.get("/sd"))
        own = running.get("/metrics")

        nodes = [group for group in groups if "job" not in group["labels"]]
        assert len(nodes) == 1000
        assert len(values(running.get(nodes[999]["labels"]["__metrics_path__"]), "gpu_up")) == 8
        assert values(own, "process_resident_memory_bytes")[0] > 0
        assert "No real GPU" in running.get("/")
        assert running.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--nodes=0"], "'0' is not accepted: write a whole number from 1 to 16384"),
        (["--nodes=many"], "'many' is not accepted"),
        (["--gpus-per-node=65"], "from 1 to 64"),
        (["--profile=v100"], "v100"),
        (["--scenario.speed=0"], "'0' is no speed: write a number from 0.01 to 3600"),
        (["--scenario.speed=nan"], "'nan' is no speed"),
        (["--scenario.file=/nowhere.yaml"], "/nowhere.yaml: can't be read"),
        (["--poll.interval=1s"], "--poll.interval is no flag"),
        (["--seed=-1"], "'-1' is not accepted"),
    ],
)
def test_wrong_flags_are_refused_with_the_remedy(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and one line that names the flag and what it takes."""
    with pytest.raises(SystemExit) as ended:
        simulate.main(arguments)

    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_the_demo_knows_the_nodes_of_its_scenario_only(capsys: pytest.CaptureFixture[str]) -> None:
    """A node that is not there is refused with those that are."""
    with pytest.raises(SystemExit):
        demo.main(["--node.name=elsewhere"])

    assert "the scenario has no node 'elsewhere'; it has gpu-node-01, gpu-node-02" in capsys.readouterr().err

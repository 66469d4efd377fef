"""``gpufleet report``: what it asks, and what each kind of answer or failure makes of it. On real sockets."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from gpufleet.cli import main
from gpufleet.commands import report_prometheus
from gpufleet.commands.report import moment, prometheus_url
from tests.support.pems import write_pems
from tests.support.scripted_http import ScriptedServer, answer

EMPTY = b'{"status":"success","data":{"resultType":"vector","result":[]}}'


def vector(*series: tuple[dict[str, str], str], **more: object) -> bytes:
    """An answer of Prometheus's."""
    result = [{"metric": labels, "value": [1, value]} for labels, value in series]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}, **more}).encode()


def run(server: ScriptedServer, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, str, str]:
    """Exit status and what is printed."""
    status = main(["report", f"--prometheus.url={server.url}", *flags])
    out, err = capsys.readouterr()
    return status, out, err


def test_queries_are_asked_at_one_time_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the path of the URL, each with the same time and the cluster."""
    with ScriptedServer(answer(200, vector(({"project": "a"}, "3600")))) as server:
        flags = (f"--prometheus.url={server.url}/prometheus/", "--at=2026-07-01T02:00:00+02:00", "--cluster=east")
        assert main(["report", *flags]) == 0
    assert capsys.readouterr().out.startswith("project")
    asked = [request.line.split() for request in server.requests]
    assert {(method, urlsplit(target).path) for method, target, _ in asked} == {("GET", "/prometheus/api/v1/query")}
    parameters = [parse_qs(urlsplit(target).query) for _, target, _ in asked]
    assert {each["time"][0] for each in parameters} == {"1782864000.000"}
    assert all('{cluster="east"}' in each["query"][0] for each in parameters)
    assert len(parameters) == 7


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (answer(400, b'{"status":"error","errorType":"bad_data","error":"parse \\u001b[2J error"}'), "bad_data: parse"),
        (answer(422, b'{"status":"error","errorType":"execution","error":"too many samples"}'), "too many samples"),
        (answer(200, b'{"status":"error","errorType":"timeout","error":"took too long"}'), "timeout: took too long"),
        (answer(503, b"upstream is gone"), "status 503: upstream is gone"),
        (answer(500), "status 500"),
        (answer(401, b"sesame"), "check basic_auth or authorization in --prometheus.config.file"),
        (answer(302, Location="http://elsewhere/"), "a redirect is not followed"),
        (answer(404, b"404 page not found"), "check the path of --prometheus.url"),
        (answer(200, b"<html>a proxy's page</html>"), "the answer is not Prometheus's"),
        (answer(200, b""), "the answer is not Prometheus's"),
        (answer(200, b"[]"), "the answer is not Prometheus's"),
        (answer(200, b"\xff\xfe"), "the answer is not Prometheus's"),
        (answer(200, b'{"status":"success"}'), "the answer is nothing"),
        (answer(200, EMPTY.replace(b"vector", b"matrix")), "the answer is matrix"),
        (answer(200, EMPTY.replace(b"[]", b'[{"metric":{"project":1},"value":[1,"1"]}]')), "not Prometheus's"),
        (answer(200, EMPTY.replace(b"[]", b'[{"metric":{},"value":[1]}]')), "not Prometheus's"),
        (answer(200, b"[" * 100_000), "not Prometheus's"),
        (answer(200, vector(({"project": "a"}, "NaN"))), "'NaN' is no sum"),
        (answer(200, vector(({"project": "a"}, "+Inf"))), "'+Inf' is no sum"),
        (answer(200, vector(({"project": "a"}, "-1"))), "'-1' is no sum"),
        (answer(200, vector(({"project": "a"}, "much"))), "'much' is no sum"),
        (answer(200, vector(({"project": "a"}, "1"), ({"project": "a"}, "2"))), "has a series twice"),
        (answer(200, EMPTY).replace(b"Content-Length: 63", b"Content-Length: 64"), "its answer broke off"),
        (answer(200, EMPTY)[:-1], "its answer broke off"),
        (b"", "hung up without an answer"),
        (b"garbage\r\n\r\n", "BadStatusLine"),
    ],
)
def test_a_bad_answer_is_no_report(reply: bytes, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, one line that says why, and nothing on standard output."""
    with ScriptedServer(reply) as server:
        status, out, err = run(server, capsys)
    assert (status, out) == (2, "")
    assert said in err
    assert "sesame" not in err
    assert "\x1b" not in err
    assert err.startswith("gpufleet report: ")
    assert err.count("\n") == 1


def test_an_answer_without_end_is_not_read_to_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten megabytes, or the time that the query has."""
    monkeypatch.setattr(report_prometheus, "MOST_BYTES", 1_000_000)

    def endless() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        while True:
            yield b"10000\r\n" + b" " * 65_536 + b"\r\n"

    with ScriptedServer(endless()) as server:
        status, out, err = run(server, capsys)
    assert (status, out) == (2, "")
    assert "more than 1 MB" in err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "nobody listens there; check host and port of --prometheus.url"),
        ("http://prometheus.invalid:9090", "the host is not known; check --prometheus.url"),
    ],
)
def test_a_server_that_is_not_there_is_told_with_the_flag(
    url: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The operating system's words alone name neither file nor flag."""
    assert main(["report", f"--prometheus.url={url}"]) == 2
    assert said in capsys.readouterr().err


def test_a_silent_server_is_not_waited_for_longer_than_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The time-out is the command's."""

    def silent() -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\n"
        server.released.wait(30)

    with _Held(silent()) as server:
        status, _, err = run(server, capsys, "--prometheus.timeout=200ms")
        server.released.set()
    assert status == 2
    assert "no answer within 0.2 s" in err


class _Held(ScriptedServer):
    def __init__(self, reply: Iterator[bytes]) -> None:
        import threading

        super().__init__(reply)
        self.released = threading.Event()


def test_warnings_are_told_once_and_the_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A store that is away makes a report of part of the truth, which has to be said."""
    reply = vector(({"project": "a"}, "3600"), warnings=["store east is\x1b[2J away"])
    with ScriptedServer(answer(200, reply)) as server:
        status, out, err = run(server, capsys)
    assert status == 0
    assert out.startswith("project")
    assert err == "gpufleet report: warning: store east is [2J away\n"


def test_nothing_recorded_is_said_with_what_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty table would look like a month without a bill."""
    with ScriptedServer(answer(200, EMPTY)) as server:
        status, out, err = run(server, capsys, "--last=7d")
    assert (status, out) == (1, "")
    assert "nothing was recorded in the last 7d" in err
    assert "alerts/gpufleet-cost.yaml" in err


def test_credentials_and_the_ca_come_from_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the format of Prometheus's http_config; without it the server is not trusted."""
    pems = write_pems(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems.folder / "server.crt", pems.folder / "server.key")
    config = tmp_path / "prometheus.yml"
    config.write_text(f"tls_config: {{ca_file: {pems.folder}/ca.crt}}\nbasic_auth: {{username: me, password: pw}}\n")
    with ScriptedServer(answer(200, vector(({"project": "a"}, "60"))), tls=context) as server:
        assert run(server, capsys)[2].endswith("check tls_config in --prometheus.config.file\n")
        assert run(server, capsys, f"--prometheus.config.file={config}")[0] == 0
    assert {request.headers["authorization"] for request in server.requests} == {"Basic bWU6cHc="}


@pytest.mark.parametrize(
    ("content", "said"),
    [("nonsense: 1\n", "nonsense"), ("basic_auth: {username: me}\n", "basic_auth needs password_file"), (None, "read")],
)
def test_a_bad_configuration_is_refused(
    content: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file, the key and the remedy, before anybody is asked."""
    config = tmp_path / "prometheus.yml"
    if content is not None:
        config.write_text(content)
    assert main(["report", "--prometheus.url=http://127.0.0.1:1", f"--prometheus.config.file={config}"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert str(config) in err
    assert "alertmanager" not in err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "where is Prometheus?"),
        (["--prometheus.url=prometheus:9090"], "is no URL of a web server"),
        (["--prometheus.url=http://[::1"], "is no URL of a web server"),
        (["--prometheus.url=http://p:99999"], "is no URL of a web server"),
        (["--prometheus.url=http://p/?a=1"], "has a query or a fragment"),
        (["--prometheus.url=http://p/api/v1"], "names the API itself"),
        (["--prometheus.url=http://p", "--last=30"], "is no duration"),
        (["--prometheus.url=http://p", "--last=1m"], "is not between 5m and 3660d"),
        (["--prometheus.url=http://p", "--prometheus.timeout=soon"], "is no duration"),
        (["--prometheus.url=http://p", "--by=user"], "user"),
        (["--prometheus.url=http://p", "--format=xml"], "xml"),
        (["--prometheus.url=http://p", "--at=yesterday"], "is no time"),
        (["--prometheus.url=http://p", "--at=2026-07-01T00:00:00"], "is no time"),
    ],
)
def test_bad_flags_are_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With what to write instead."""
    with pytest.raises(SystemExit) as ended:
        main(["report", *flags])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_password_in_the_url_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """It says where to write it instead."""
    with pytest.raises(SystemExit):
        main(["report", "--prometheus.url=http://me:sesame@p:9090"])
    err = capsys.readouterr().err
    assert "--prometheus.config.file" in err
    assert "sesame" not in err


def test_times_and_urls_are_read() -> None:
    """A day begins at midnight UTC; slashes at the end of a URL go."""
    assert moment("2026-07-01") == moment("2026-07-01T02:00:00+02:00") == moment("1782864000") == 1_782_864_000
    assert prometheus_url("https://mimir.example/prometheus/") == "https://mimir.example/prometheus"

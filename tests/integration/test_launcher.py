"""``gpufleet run`` before real programs: nothing that they or their parents can see is different."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.scripted_http import ScriptedServer, answer
from tests.waiting import until

RUN = [str(Path(sys.executable).with_name("gpufleet")), "run"]
HIT = {"incident": "00000000000000a1", "fault": "79", "age_seconds": 0.0, "refund": True}


def told(*incidents: dict[str, object], settling: bool = False) -> bytes:
    """An answer of the exporter's."""
    body = json.dumps({"version": 1, "settling": settling, "incidents": incidents}).encode()
    return answer(200, body)


def launched(*words: str, flags: tuple[str, ...] = ("--wait=0",), **more: object) -> subprocess.CompletedProcess[str]:
    """Run a program by the launcher, to its end."""
    return subprocess.run([*RUN, *flags, "--", *words], capture_output=True, text=True, timeout=60, check=False, **more)  # type: ignore[call-overload, no-any-return]


def python(code: str) -> tuple[str, ...]:
    """A program."""
    return (sys.executable, "-S", "-c", code)


def test_the_exit_status_is_the_programs() -> None:
    """Whatever it is; 250 alone is told otherwise below."""
    codes = [code for code in range(256) if code != 250]
    run = f'for c in {" ".join(map(str, codes))}; do "$@" --wait=0 -- sh -c "exit $c" 2>/dev/null; echo $?; done'
    done = subprocess.run(["sh", "-c", run, "sh", *RUN], capture_output=True, text=True, timeout=120, check=False)

    assert [int(each) for each in done.stdout.split()] == codes


def test_the_programs_own_use_of_the_code_becomes_1() -> None:
    """Or whoever writes it into a program has retries without end."""
    assert launched("sh", "-c", "exit 250").returncode == 1
    assert launched("sh", "-c", "exit 251", flags=("--wait=0", "--exit-code=251")).returncode == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1])
def test_a_program_that_is_killed_by_a_signal_leaves_by_it(number: signal.Signals) -> None:
    """A shell, a batch system and a kubelet see which one it was."""
    assert launched("sh", "-c", f"kill -{number.value} $$").returncode == -number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_go_on_to_the_program(number: signal.Signals, tmp_path: Path) -> None:
    """Once, and it decides what they mean."""
    seen = tmp_path / "seen"
    code = (
        f"import signal,sys,time,pathlib; p=pathlib.Path({str(seen)!r}); "
        "on=lambda *_: (p.write_text(p.read_text()+'x'), sys.exit(7)); "
        f"signal.signal({number.value}, on); p.write_text(''); time.sleep(60)"
    )
    process = subprocess.Popen([*RUN, "--wait=0", "--", *python(code)])
    until(seen.exists, "the program has begun")
    process.send_signal(number)

    assert process.wait(20) == 7
    assert seen.read_text() == "x"


def test_what_the_program_reads_and_writes_is_its_own() -> None:
    """Input, output, errors, arguments, environment, directory: the same descriptors, in the same order of bytes."""
    code = (
        "import sys,os; d=sys.stdin.buffer.read(); os.write(1,d[::-1]); os.write(2,b'err'); "
        "print(sys.argv[1:], os.environ['X'], os.getcwd())"
    )
    done = subprocess.run(
        [*RUN, "--", *python(code), "a b", "--", "-x"],
        input=b"\x00\xffabc",
        capture_output=True,
        timeout=60,
        check=False,
        cwd="/",
        env={**os.environ, "X": "ü"},
    )

    assert done.returncode == 0
    assert done.stdout == b"cba\xff\x00" + "['a b', '--', '-x'] ü /\n".encode()
    assert done.stderr == b"err"


def test_a_program_that_cannot_be_started_is_told_as_a_shell_does(tmp_path: Path) -> None:
    """127 is not found, 126 is found and cannot be executed."""
    (tmp_path / "plain").write_text("x")
    missing, plain = launched("no-such-program"), launched(str(tmp_path / "plain"))

    assert (missing.returncode, missing.stderr) == (127, "gpufleet run: no-such-program: No such file or directory\n")
    assert plain.returncode == 126


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--",), "no program is named"),
        ((), "no program is named"),
        (("--exportr=x", "--", "true"), "--exportr is no flag"),
        (("--exit-code=0", "--", "true"), "--exit-code=0 must be"),
        (("--wait=21", "--", "true"), "--wait=21 must be"),
        (("--run", "--", "true"), "--run needs a value"),
    ],
)
def test_a_mistake_in_the_flags_starts_nothing(flags: tuple[str, ...], says: str) -> None:
    """And is named."""
    done = subprocess.run([*RUN, *flags], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 2
    assert says in done.stderr


@pytest.fixture
def exporter() -> Iterator[ScriptedServer]:
    """Stands in for the node's exporter: answers as a test says."""
    with ScriptedServer() as server:
        yield server


def test_a_hardware_fault_is_told_by_the_code(exporter: ScriptedServer) -> None:
    """And said on standard error, in one line."""
    exporter.reply = told(HIT)
    done = launched("sh", "-c", "exit 1", flags=(f"--exporter={exporter.url}",))

    assert done.returncode == 250
    assert done.stderr.count("\n") == 1
    assert "hardware fault 79 (incident 00000000000000a1)" in done.stderr


def test_a_program_that_a_signal_ended_is_excused_too(exporter: ScriptedServer) -> None:
    """CUDA's own abort, or the kernel's SIGBUS on a lost mapping."""
    exporter.reply = told(HIT)
    assert launched("sh", "-c", "kill -ABRT $$", flags=(f"--exporter={exporter.url}",)).returncode == 250


def test_a_program_that_succeeds_asks_nobody(exporter: ScriptedServer) -> None:
    """A fault that it lived through is no reason to run it again."""
    exporter.reply = told(HIT)
    assert launched("true", flags=(f"--exporter={exporter.url}",)).returncode == 0
    assert exporter.requests == []


def test_what_is_not_certain_yet_is_asked_again(exporter: ScriptedServer) -> None:
    """Some codes are echoes of others: what they mean is settled seconds later."""
    exporter.reply = told(settling=True)
    process = subprocess.Popen([*RUN, f"--exporter={exporter.url}", "--", "false"])
    # Longer than a clean answer is waited for.
    until(lambda: len(exporter.requests) > 8, "it asks again and again")
    exporter.reply = told(HIT)

    assert process.wait(10) == 250


def test_faults_of_applications_and_of_before_excuse_nothing(exporter: ScriptedServer) -> None:
    """Its own code, after the few seconds in which something could still come."""
    exporter.reply = told({**HIT, "refund": False}, {**HIT, "age_seconds": 3600.0})
    begin = time.monotonic()
    done = launched("sh", "-c", "exit 3", flags=(f"--exporter={exporter.url}",))

    assert done.returncode == 3
    assert 2.5 < time.monotonic() - begin < 10


@pytest.mark.parametrize("bad", [answer(503, b"no"), answer(200, b"<html>"), b"", b"garbage\r\n\r\n"])
def test_without_an_answer_the_code_is_the_programs(exporter: ScriptedServer, bad: bytes) -> None:
    """And why is said."""
    exporter.reply = bad
    done = launched("sh", "-c", "exit 3", flags=(f"--exporter={exporter.url}", "--wait=2"))

    assert done.returncode == 3
    assert "no verdict" in done.stderr


def test_nobody_who_can_be_asked_is_said() -> None:
    """Or a word that is forgotten in a manifest is found out by a lost retry."""
    environ = {name: value for name, value in os.environ.items() if name not in {"NODE_IP", "GPUFLEET_EXPORTER"}}
    done = launched("sh", "-c", "exit 3", env=environ)

    assert done.returncode == 3
    assert "set NODE_IP (status.hostIP), or give --exporter" in done.stderr


def test_an_exporter_that_drips_does_not_outlast_the_limit(tmp_path: Path) -> None:
    """Each byte comes in time for itself; the other place is heard all the same."""
    path = tmp_path / "drip.sock"
    with socket.socket(socket.AF_UNIX) as listener, ScriptedServer() as service:
        listener.bind(str(path))
        listener.listen()

        def drip() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as peer:
                for byte in itertools.cycle(b"X"):
                    peer.sendall(bytes([byte]))
                    time.sleep(0.2)

        threading.Thread(target=drip, daemon=True).start()
        begin = time.monotonic()
        done = launched("sh", "-c", "exit 3", flags=(f"--exporter=unix:{path}", "--wait=3"))
        assert done.returncode == 3
        assert 2.5 < time.monotonic() - begin < 5
        assert "has not answered in time" in done.stderr

        service.reply = told(HIT)
        flags = (f"--exporter=unix:{path}", f"--quarantine={service.url}", "--run=r")
        assert launched("sh", "-c", "exit 3", flags=flags).returncode == 250


def test_the_exporter_says_what_the_run_is_called(exporter: ScriptedServer) -> None:
    """And the quarantine is asked for that: nobody need write it into a manifest."""
    body = {"version": 1, "settling": False, "incidents": [], "project": "team a", "run": "r&d"}
    exporter.reply = answer(200, json.dumps(body).encode())
    environ = {name: value for name, value in os.environ.items() if name not in {"GPUFLEET_RUN", "SLURM_JOB_ID"}}
    with ScriptedServer(told(HIT)) as service:
        flags = (f"--exporter={exporter.url}", f"--quarantine={service.url}")
        assert launched("sh", "-c", "exit 3", flags=flags, env=environ).returncode == 250
        assert "&project=team%20a&run=r%26d" in str(service.requests[0])


def test_an_exporter_that_cannot_see_says_so(exporter: ScriptedServer) -> None:
    """No fault that is known is not the same as no fault."""
    body = {"version": 1, "settling": False, "incidents": [], "unknown": True, "reason": "kmsg: no such file"}
    exporter.reply = answer(200, json.dumps(body).encode())
    done = launched("sh", "-c", "exit 3", flags=(f"--exporter={exporter.url}",))

    assert done.returncode == 3
    assert "does not know: kmsg: no such file" in done.stderr


def test_whoever_ignores_sigchld_gets_the_status() -> None:
    """The kernel keeps no status for such a parent: the launcher would wait for ever."""
    code = "import os,signal,sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    words = [*python(code), *RUN, "--wait=0", "--", "sh", "-c", "exit 5"]
    assert subprocess.run(words, timeout=30, check=False).returncode == 5


def test_a_signal_without_a_name_is_one() -> None:
    """Of the real-time signals two have names."""
    assert launched(*python("import os; os.kill(os.getpid(), 36)")).returncode == -36


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_standard_error_that_takes_nothing_changes_no_status(redirected: str) -> None:
    """What is said is lost, and nothing else."""
    command = f'"$@" --wait=0 -- sh -c "exit 9" {redirected}'
    assert subprocess.run(["sh", "-c", command, "sh", *RUN], timeout=60, check=False).returncode == 9


def test_nobody_waits_after_a_signal_to_end(exporter: ScriptedServer, tmp_path: Path) -> None:
    """A kubelet kills thirty seconds after SIGTERM; an eviction is no fault of hardware."""
    exporter.reply = told(HIT)
    process = subprocess.Popen([*RUN, f"--exporter={exporter.url}", "--", "sh", "-c", f"touch {tmp_path}/x; sleep 60"])
    until((tmp_path / "x").exists, "the program has begun")
    process.send_signal(signal.SIGTERM)

    assert process.wait(5) == -signal.SIGTERM
    assert exporter.requests == []


def test_a_terminals_interrupt_arrives_once(tmp_path: Path) -> None:
    """The terminal tells the whole foreground group; what went on to the program as well would end it at once."""
    code = (
        "import signal,time,sys; n=[0]; on=lambda *_: n.__setitem__(0, n[0]+1); signal.signal(signal.SIGINT, on); "
        f"open({str(tmp_path / 'x')!r},'w').close(); end=time.monotonic()+1\n"
        "while time.monotonic()<end: time.sleep(0.05)\n"
        "sys.exit(100+n[0])"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(RUN[0], [*RUN, "--wait=0", "--", *python(code)])
    try:
        until((tmp_path / "x").exists, "the program has begun")
        os.write(terminal, b"\x03")
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)

    assert os.waitstatus_to_exitcode(status) == 101


def test_as_pid_1_it_reaps_orphans_and_tells_signals_by_number() -> None:
    """A container's first process is not killed by a signal that it sends itself."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no PID namespaces here: run as root with CAP_SYS_ADMIN")
    leave_orphans = "for i in 1 2 3; do (sh -c 'sleep 0.1 & exec true' &) ; done"
    orphans = f"{leave_orphans}; sleep 1; ps -o stat= -e | grep -c Z; kill -KILL $$"
    done = subprocess.run(
        [*unshare, *RUN, "--wait=0", "--", "sh", "-c", orphans], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 137
    assert done.stdout == "0\n"


def test_it_is_light() -> None:
    """Nothing but the standard library, and no more of it than it takes to wait."""
    code = "import sys; from gpufleet.cli import main; main(['run','--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    loaded = set(done.stderr.split())

    assert not loaded & {
        "argparse",
        "logging",
        "http.client",
        "ssl",
        "json.tool",
        "msgspec",
        "asyncio",
        "threading.local",
    }

"""Slurm: a batch script, and the slurm.conf that has to know the launcher's code.

Slurm counts no requeue that somebody asks for, so nothing is lost while the job ends as FAILED and may be requeued: at
once by RequeueExit for the launcher's code, or by the quarantine, while the controller remembers the job. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from gpufleet.launch.verdict import FAULT_CODE
from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import WHOLE, Change, Judgement, Verdict
from gpufleet.quarantine.lint.launcher import code_of_script
from gpufleet.quarantine.lint.manifests import SLURM_CONFIGURATION, Document
from gpufleet.quarantine.lint.shell import Status, launcher_status, logical_lines

_GPU = re.compile(r"(?:--gres=\S*gpu|--gpus|--tres-per-\w+=\S*gpu|-G(?:\s|\d|$)|--gres\s+\S*gpu)")
_BY_QUARANTINE = (
    "Slurm counts no requeue; the quarantine asks for one while the controller remembers the job (MinJobAge)"
)
_STEP = re.compile(r"\bsrun\s.*?(?=gpufleet\s+run\b)", re.DOTALL)
"""srun with the launcher in its tasks; one around srun is not concerned."""
_KILLS = re.compile(r"\s(?:--kill-on-bad-exit|-K)(=?[01]?)(?=\s)")
_SEEN = "only #SBATCH lines are seen, not options on sbatch's own command line"
_VALUED = frozenset("nNcGpwxJoeitADmCdkK")
"""Options of srun of one letter that take a value."""
_FLAGS = frozenset(
    {"--label", "--unbuffered", "--exclusive", "--overlap", "--kill-on-bad-exit", "--exact", "--verbose"}
)


def judge_script(document: Document, facts: Facts) -> Judgement:
    """A batch script."""
    directives = list(_directives(document.script))
    if not any(_GPU.search(each) for each in directives):
        return Judgement(Verdict.SAFE, "it asks for no GPU", notes=(_SEEN,))
    code = code_of_script(document.script)
    configuration = next((each for each in facts.documents if each.kind == SLURM_CONFIGURATION), None)
    if refused := _not_requeued(directives, configuration):
        return refused
    interpreter = document.script.partition("\n")[0]
    strict = interpreter.startswith("#!") and bool(re.search(r"\s-\w*e", interpreter))
    match launcher_status(document.script, exits_on_error=strict):
        case Status.PASSED:
            return _hidden(document.script, configuration) or _requeued(code, configuration)
        case Status.SWALLOWED:
            reason = "the script goes on after the launcher and ends with another exit status, so that no fault is seen"
            return Judgement(
                Verdict.COSTS, reason, WHOLE, (Change(WHOLE, "exec srun gpufleet run -- …   # the last line"),)
            )
        case Status.UNSEEN:
            reason = "which exit status the script ends with cannot be seen; it must be the launcher's"
            return Judgement(Verdict.UNKNOWN, reason, WHOLE, (Change(WHOLE, "set -e"),))
        case Status.ABSENT:
            reason = "nothing in the script is started by the launcher: a fault looks like an error of the program"
            change = Change(WHOLE, _launched(document.script))
            return Judgement(Verdict.COSTS, reason, WHOLE, (change,), (_BY_QUARANTINE,))


def judge_configuration(document: Document, _: Facts) -> Judgement:
    """A slurm.conf."""
    exits, held = _setting(document.script, "RequeueExit"), _setting(document.script, "RequeueExitHold")
    if _contains(held, FAULT_CODE):
        reason = f"RequeueExitHold has {FAULT_CODE}: a job that a fault has ended would wait for a person"
        return Judgement(Verdict.COSTS, reason, ("RequeueExitHold",))
    if _contains(exits, FAULT_CODE):
        return Judgement(Verdict.SAFE, f"RequeueExit has the launcher's {FAULT_CODE}", ("RequeueExit",))
    wanted = ",".join(filter(None, (exits, str(FAULT_CODE))))
    reason = f"RequeueExit does not have the launcher's {FAULT_CODE}"
    change = Change(WHOLE, f"RequeueExit={wanted}")
    return Judgement(Verdict.COSTS, reason, ("RequeueExit",), (change,), (_BY_QUARANTINE,))


def _not_requeued(directives: list[str], configuration: Document | None) -> Judgement | None:
    words = [word for each in directives for word in each.split()]
    last = next((word for word in reversed(words) if word in {"--requeue", "--no-requeue"}), None)
    if last == "--no-requeue":
        reason = "--no-requeue: neither Slurm nor the quarantine may start it again"
        return Judgement(Verdict.LOST, reason, WHOLE, (Change(WHOLE, "#SBATCH --requeue"),))
    if last is None and configuration is not None and _setting(configuration.script, "JobRequeue") == "0":
        reason = f"JobRequeue=0 in {configuration.file}: jobs are not started again unless they ask for it"
        return Judgement(Verdict.LOST, reason, WHOLE, (Change(WHOLE, "#SBATCH --requeue"),))
    return None


def _hidden(script: str, configuration: Document | None) -> Judgement | None:
    """Whether srun kills the peers of a task that has failed; then it ends with their signal, not with the code."""
    found = next((match for each in logical_lines(script) if (match := _STEP.search(each))), None)
    if found is None:
        return None
    line, asked = found.string, _KILLS.findall(found[0])
    by_default = configuration is not None and _setting(configuration.script, "KillOnBadExit") == "1"
    if not (asked[-1] not in {"=0", "0"} if asked else by_default):
        return None
    how = "--kill-on-bad-exit" if asked else "KillOnBadExit=1 in slurm.conf"
    reason = f"{how}: the peers that srun kills hide the launcher's code, for srun reports signals above exit codes"
    without = _KILLS.sub("", found[0])
    wanted = line.replace(found[0], without if asked else without.replace("srun", "srun --kill-on-bad-exit=0", 1))
    return Judgement(Verdict.COSTS, reason, WHOLE, (Change(WHOLE, wanted),), (_BY_QUARANTINE,))


def _requeued(code: int, configuration: Document | None) -> Judgement:
    if configuration is None:
        note = f"slurm.conf must have RequeueExit={code}; name that file, too, to have it looked at"
        return Judgement(
            Verdict.SAFE, f"it ends with the launcher's {code}, for which Slurm requeues it", notes=(note,)
        )
    if _contains(_setting(configuration.script, "RequeueExit"), code):
        return Judgement(
            Verdict.SAFE, f"it ends with the launcher's {code}, for which {configuration.file} requeues it"
        )
    reason = f"it ends with the launcher's {code}, and RequeueExit in {configuration.file} does not have that"
    return Judgement(Verdict.COSTS, reason, WHOLE, (), (_BY_QUARANTINE,))


def _directives(script: str) -> Iterator[str]:
    """What #SBATCH lines say; Slurm stops reading them at the first command."""
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            yield re.sub(r"\s#.*", "", line.removeprefix("#SBATCH"))
        elif line.strip() and not line.startswith("#"):
            return


def _launched(script: str) -> str:
    """The line that starts the program, with the launcher in it."""
    lines = list(logical_lines(script))
    starts = next((line for line in reversed(lines) if re.match(r"(?:exec\s+)?srun\s", line)), None)
    if starts is None:
        last = lines[-1] if lines else "<your program>"
        return f"exec gpufleet run -- {last}"
    at = _program(starts)
    return (
        "exec srun gpufleet run -- …"
        if at is None
        else f"exec {starts[:at]}gpufleet run -- {starts[at:]}".replace("exec exec", "exec")
    )


def _program(line: str) -> int | None:
    """Where srun's program begins in the line; None where that cannot be told."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    number = words.index("srun") + 1
    while number < len(words) and words[number].startswith("-"):
        word = words[number]
        if word.startswith("--"):
            if "=" not in word and word not in _FLAGS:
                return None
            number += 1
        else:
            number += 2 if len(word) == 2 and word[1] in _VALUED else 1
    if number >= len(words):
        return None
    found = line.find(words[number], len("srun"))
    return found if found >= 0 else None


def _setting(text: str, name: str) -> str:
    """The last value of a setting of slurm.conf, whose names know no case."""
    found = re.findall(rf"^\s*{name}\s*=\s*([^\s#]*)", text, re.IGNORECASE | re.MULTILINE)
    return str(found[-1]) if found else ""


def _contains(codes: str, code: int) -> bool:
    """Whether a list such as ``1-10,250`` has it."""
    for part in codes.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and int(first) <= code <= int(last if dash and last.isdigit() else first):
            return True
    return False

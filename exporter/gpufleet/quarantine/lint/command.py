"""``gpufleet quarantine lint FILE…``: would a hardware fault cost these workloads a retry, and what is to be added.

Exit status: 0 all are safe, 1 one is not or cannot be told, 2 a file or the command line is refused.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from gpufleet.quarantine.lint.facts import Facts
from gpufleet.quarantine.lint.finding import Finding, Verdict
from gpufleet.quarantine.lint.kinds import KINDS, judge
from gpufleet.quarantine.lint.manifests import MOST_BYTES, Document, ManifestError, read
from gpufleet.quarantine.lint.text import as_json, as_text
from gpufleet.small_file import read_small_file
from gpufleet.standard_output import tell

_PROGRAM = "gpufleet quarantine lint"
_UNSAFE, _USAGE = 1, 2
_SUMMARY = """\
Say of each workload whether a hardware fault would cost it a retry, and which keys to add. Judged is the hard case: the
program on the broken GPU crashes by itself, before anybody can move it. Files that belong together (a TrainJob and its
runtime, a batch script and slurm.conf) are best named together."""
_EXAMPLES = """\
exit status: 0 all are safe, 1 one is not or cannot be told, 2 a file is refused

examples:
  gpufleet quarantine lint job.yaml
  helm template chart | gpufleet quarantine lint -
  gpufleet quarantine lint --format=json train.sbatch /etc/slurm/slurm.conf"""


def main(argv: Sequence[str]) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog=_PROGRAM,
        description=f"{_SUMMARY}\n\nKnown are {', '.join(dict.fromkeys(kind for _, kind in KINDS))}.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a manifest (YAML or JSON) or batch script; - is standard input"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="how to say it (default text)")
    parser.add_argument(
        "--admission",
        action="store_true",
        help="the cluster has the admission webhook of deploy/kubernetes/quarantine-admission.yaml",
    )
    try:
        given = parser.parse_args(list(argv))
    except SystemExit as ended:
        return _USAGE if ended.code else 0
    documents: list[Document] = []
    for file in given.files:
        try:
            documents += read(_content(file), "standard input" if file == "-" else file)
        except ManifestError as error:
            sys.stderr.write(f"{_PROGRAM}: {error}\n")
            return _USAGE
    facts = Facts(tuple(documents), admission=given.admission)
    found = [judge(document, facts) for document in documents]
    unsafe = any(isinstance(each, Finding) and each.verdict is not Verdict.SAFE for each in found)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Manifests may have any letters, and a terminal may know only some.
        sys.stdout.reconfigure(errors="backslashreplace")
    said = as_json(found) if given.format == "json" else as_text(found)
    return tell(said, _UNSAFE if unsafe else 0, _PROGRAM)


def _content(file: str) -> bytes:
    """What a file holds. Raises ManifestError."""
    try:
        if file == "-":
            return sys.stdin.buffer.read(MOST_BYTES + 1)
        return read_small_file(Path(file), MOST_BYTES)
    except OSError as error:
        raise ManifestError(f"{file}: can't be read: {error.strerror}; check the path and who may read it") from error

"""Runs every fuzz program for its share of a time: python -m tests.fuzz BUILD [PROGRAM…].

VENUS_FUZZ_SECONDS is the time for all of them together, 50 without it. Each begins with what the
encoders make, with what earlier findings were (tests/fuzz/regressions), and with what earlier runs
in BUILD have come to. A finding is left in BUILD/findings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.seeds import programs, write_seeds

REGRESSIONS = Path(__file__).parent / "regressions"
DEFAULT_SECONDS = 50
INPUT_TIMEOUT_S = 20
MEMORY_MIB = 1024
# Larger than any of the parsers takes in one piece would only be refused.
MAX_INPUT_BYTES = 16384
# A program that tries next to nothing has a fault of its own. Those that start processes try
# the least.
LEAST_RUNS = 50


class Finding(Exception):
    """A program that failed; the text says how."""


def run(program: Path, corpus: Path, findings: Path, seconds: int) -> str:
    """A line about what was tried."""
    inputs = [corpus / program.name]
    if (regressions := REGRESSIONS / program.name).is_dir():
        inputs.append(regressions)
    done = subprocess.run(
        [
            program,
            *inputs,
            f"-max_total_time={seconds}",
            f"-timeout={INPUT_TIMEOUT_S}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-max_len={MAX_INPUT_BYTES}",
            f"-artifact_prefix={findings}/{program.name}-",
            "-reload=0",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    text = done.stdout.decode(errors="replace")
    runs = re.search(r"Done (\d+) runs", text)
    if done.returncode != 0 or runs is None:
        found = re.search(r"^.*(runtime error|ERROR:|deadly signal)", text, re.M)
        raise Finding(f"{program.name} failed:\n{text[found.start() if found else -6000 :][:6000]}")
    if int(runs[1]) < LEAST_RUNS:
        raise Finding(f"{program.name} tried {runs[1]} inputs in {seconds} s, which is too few")
    covered = re.findall(r"cov: (\d+)", text)
    return f"{program.name}: {runs[1]} inputs, {covered[-1] if covered else 0} edges"


def main() -> int:
    build, wanted = Path(sys.argv[1]).resolve(), sys.argv[2:]
    corpus, findings = build / "corpus", build / "findings"
    findings.mkdir(exist_ok=True)
    write_seeds(corpus, build)
    tried = [each for each in programs(build) if not wanted or each.name in wanted]
    at_once = min(len(tried), len(os.sched_getaffinity(0)))
    total = int(os.environ.get("VENUS_FUZZ_SECONDS", DEFAULT_SECONDS))
    seconds = max(1, total * at_once // len(tried))
    failed = False
    with ThreadPoolExecutor(at_once) as pool:
        for future in [pool.submit(run, each, corpus, findings, seconds) for each in tried]:
            try:
                print(future.result(), flush=True)
            except Finding as finding:
                failed = True
                print(finding, file=sys.stderr, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

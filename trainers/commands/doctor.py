"""`warpdrive doctor`: what this machine has, what is missing and how to mend it, and what would run here."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from trainers.settings.arguments import Overrides, refuse_overrides
from warpdrive.errors import printable, tell

CAN_TRAIN, NOTHING_CAN = 0, 3

_COLOURS = {"ok": "32", "warning": "33", "problem": "31"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="the report as JSON")


def run(options: argparse.Namespace, overrides: Overrides, folder: Path | None) -> int:
    refuse_overrides("doctor", overrides)
    import os
    import sys

    from warpdrive.doctor import examine

    report = examine()
    if options.json:
        findings = [dataclasses.asdict(finding) for finding in report.findings]
        tell(json.dumps({"can_train": report.can_train, "findings": findings}, indent=1))
    else:
        has_colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        width = max(len(finding.subject) for finding in report.findings)
        for finding in report.findings:
            state = f"{finding.state:7}"
            if has_colour:
                state = f"\033[{_COLOURS[finding.state]}m{state}\033[0m"
            print(f"{state}  {finding.subject:{width}}  {printable(finding.text)}")
            if finding.fix:
                print(f"{'':7}  {'':{width}}  fix: {printable(finding.fix)}")
    return CAN_TRAIN if report.can_train else NOTHING_CAN

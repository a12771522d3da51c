#!/usr/bin/env python3
"""Counts single test cases and ends with the line "N passed, N failed".

usage: count_tests.py [--without-ctest] FOLDER

FOLDER holds ctest.xml (JUnit, one row per ctest test), one GoogleTest JSON file per test program
(its cases replace the program's row), and JUnit files of other runners (pytest*.xml).
"""

import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def googletest_cases(path):
    """(passed, failed, skipped) of one GoogleTest JSON report."""
    passed = failed = skipped = 0
    for suite in json.loads(path.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            if case.get("failures"):
                failed += 1
            elif case.get("result") == "SKIPPED":
                skipped += 1
            elif case.get("status") == "RUN":
                passed += 1
    return passed, failed, skipped


def junit_cases(path):
    """(name, outcome) of every case of a JUnit file."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            outcome = "failed"
        elif case.find("skipped") is not None or case.get("status") in ("disabled", "notrun"):
            outcome = "skipped"
        else:
            outcome = "passed"
        yield case.get("name"), outcome


def main():
    *options, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    total = {"passed": 0, "failed": 0, "skipped": 0}
    bad = []
    if "--without-ctest" not in options and not (folder / "ctest.xml").exists():
        bad.append("ctest (wrote no report)")
        total["failed"] += 1
    for report in sorted(folder.glob("*.xml")):
        for name, outcome in junit_cases(report):
            details = folder / f"{name}_tests.json"
            if report.name == "ctest.xml" and details.exists():
                passed, failed, skipped = googletest_cases(details)
                # A program that died after its report, or beside it, failed too.
                if outcome == "failed" and failed == 0:
                    failed = 1
                total["passed"] += passed
                total["failed"] += failed
                total["skipped"] += skipped
                outcome = "failed" if failed else outcome
            else:
                total[outcome] += 1
            if outcome == "failed":
                bad.append(name)
    if bad:
        print("failed:", ", ".join(bad))
    if total["skipped"]:
        print(f"skipped: {total['skipped']}")
    print(f"{total['passed']} passed, {total['failed']} failed", flush=True)
    return 0 if total["failed"] == 0 and total["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())

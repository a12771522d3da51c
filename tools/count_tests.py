#!/usr/bin/env python3
"""Counts single test cases, names the slowest ten, repeats the output of failing ones and ends with
the line "N passed, N failed".

usage: count_tests.py [--without-ctest] FOLDER

FOLDER holds ctest.xml (JUnit, one row per ctest test), one GoogleTest JSON file per test program
(its cases replace the program's row), and JUnit files of other runners (pytest*.xml).
"""

import json
import pathlib
import sys
import xml.etree.ElementTree as ElementTree

SLOWEST = 10
LINES_OF_A_FAILURE = 12


def googletest_cases(path):
    """(name, outcome, seconds, output) of every case of a GoogleTest JSON report."""
    for suite in json.loads(path.read_text())["testsuites"]:
        for case in suite["testsuite"]:
            name = f"{case.get('classname', suite.get('name'))}.{case.get('name')}"
            seconds = float(case.get("time", "0s").rstrip("s"))
            if case.get("failures"):
                yield name, "failed", seconds, case["failures"][0].get("failure", "")
            elif case.get("result") == "SKIPPED":
                yield name, "skipped", seconds, ""
            elif case.get("status") == "RUN":
                yield name, "passed", seconds, ""


def junit_cases(path):
    """(name, outcome, seconds, output) of every case of a JUnit file."""
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        said = ""
        failures = [*case.iter("failure"), *case.iter("error")]
        if failures:
            outcome = "failed"
            said = failures[0].get("message") or failures[0].text or ""
        elif case.find("skipped") is not None or case.get("status") in ("disabled", "notrun"):
            outcome = "skipped"
        else:
            outcome = "passed"
        yield case.get("name"), outcome, float(case.get("time") or 0), said


def main():
    *options, folder = sys.argv[1:]
    folder = pathlib.Path(folder)
    total = {"passed": 0, "failed": 0, "skipped": 0}
    bad = []
    messages = []  # (case, output)
    if "--without-ctest" not in options and not (folder / "ctest.xml").exists():
        bad.append("ctest (wrote no report)")
        total["failed"] += 1
    times = []
    for report in sorted(folder.glob("*.xml")):
        for name, outcome, seconds, said in junit_cases(report):
            details = folder / f"{name}_tests.json"
            if report.name == "ctest.xml" and details.exists():
                cases = list(googletest_cases(details))
                for case, case_outcome, taken, case_said in cases:
                    total[case_outcome] += 1
                    times.append((taken, case, name))
                    if case_outcome == "failed":
                        messages.append((f"{case} ({name})", case_said))
                failed = any(case_outcome == "failed" for _, case_outcome, *_ in cases)
                if outcome == "failed" and not failed:
                    # A program that died after its report, or without one, failed too.
                    total["failed"] += 1
                outcome = "failed" if failed else outcome
            else:
                total[outcome] += 1
                times.append((seconds, name, report.stem))
                if outcome == "failed":
                    messages.append((name, said))
            if outcome == "failed":
                bad.append(name)
    if times:
        print(f"the slowest {min(SLOWEST, len(times))}:")
        for seconds, name, program in sorted(times, reverse=True)[:SLOWEST]:
            print(f"  {seconds:7.1f} s  {name} ({program})")
    for case, said in messages:
        print(f"{case} failed:")
        for line in said.splitlines()[:LINES_OF_A_FAILURE]:
            print(f"  {line}")
    if bad:
        print("failed:", ", ".join(bad))
    if total["skipped"]:
        print(f"skipped: {total['skipped']}")
    print(f"{total['passed']} passed, {total['failed']} failed", flush=True)
    return 0 if total["failed"] == 0 and total["passed"] > 0 else 1


if __name__ == "__main__":
    sys.exit(main())

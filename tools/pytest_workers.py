"""Runs the tests of a pytest session in several processes, one test at a time in each."""

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import time

CONTEXT = multiprocessing.get_context("spawn")
# Seconds until a worker has imported what it needs and collected the tests.
COLLECTION = 300


class Remote:
    """A plugin of pytest, in a worker: sends the names of all tests, then runs those that the
    connection names and sends what `records` has of each. Names in `records` at the beginning are
    files that could not be collected."""

    def __init__(self, connection, name, records):
        self.connection, self.name, self.records = connection, name, records

    def pytest_runtestloop(self, session):
        items = {self.name(item.nodeid): item for item in session.items}
        try:
            self.connection.send([*items, *self.records])
            while (name := self.connection.recv()) is not None:
                if name in items:
                    items[name].config.hook.pytest_runtest_protocol(item=items[name], nextitem=None)
                self.connection.send(self.records[name])
        except (EOFError, ConnectionError):
            pass  # nobody waits for outcomes any more
        return True


class Worker:
    """A process that runs `target(connection, number, *arguments)`, which starts pytest with
    `Remote`; `number` counts the workers of this process."""

    count = 0

    def __init__(self, target, arguments, timeout):
        self.connection, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(
            target=_in_a_group, args=(target, theirs, Worker.count, *arguments)
        )
        self.process.start()
        Worker.count += 1
        theirs.close()
        self.collected, self.test, self.begun = False, None, time.monotonic()
        self.timeout = timeout

    def run(self, test):
        self.test, self.begun = test, time.monotonic()
        self.connection.send(test)

    def message(self):
        """What the worker has sent, or None; and what went wrong: it ended or took too long."""
        try:
            if self.connection.poll():
                return self.connection.recv(), None
        except (EOFError, ConnectionError):
            self.process.join(10)
            return None, f"its process ended with status {self.process.exitcode}"
        if not self.process.is_alive():
            return None, f"its process ended with status {self.process.exitcode}"
        limit = self.timeout if self.collected else max(self.timeout, COLLECTION)
        if (self.test or not self.collected) and time.monotonic() - self.begun > limit:
            return None, f"took longer than {limit:g} s"
        return None, None

    def leave(self):
        """Asks a worker that runs no test to end."""
        try:
            if self.collected and not self.test:
                self.connection.send(None)
        except ConnectionError:
            pass

    def kill(self):
        """Ends the process and those that it started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()
        self.process.join()
        self.connection.close()


def _in_a_group(target, *arguments):
    os.setsid()
    target(*arguments)


def run_in_workers(target, arguments, jobs, done, report, *, timeout, seconds=float("inf")):
    """Runs the tests that are not in `done` in `jobs` workers; calls `report(test, record, why)`
    for each with what its worker sent, or with None and a reason where the worker ended or took
    longer than `timeout` seconds. After `seconds` no test begins, and those that run are given up.

    Returns the names of all tests, or None if no worker had collected them in these seconds."""
    deadline = time.monotonic() + seconds
    tests, waiting = None, []
    workers = [Worker(target, arguments, timeout) for _ in range(jobs)]
    try:
        while tests is None or waiting or any(worker.test for worker in workers):
            if time.monotonic() >= deadline:
                break
            multiprocessing.connection.wait([worker.connection for worker in workers], 0.2)
            for worker in list(workers):
                message, fault = worker.message()
                if fault:
                    workers.remove(worker)
                    worker.kill()
                    if worker.test:
                        report(worker.test, None, fault)
                        workers.append(Worker(target, arguments, timeout))
                    elif not workers:
                        sys.exit(f"pytest_workers.py: a worker collected no tests: {fault}")
                    continue
                if message is not None and worker.collected:
                    report(worker.test, message, None)
                    worker.test = None
                elif message is not None:
                    worker.collected = True
                    if tests is None:
                        tests = message
                        waiting = [test for test in reversed(tests) if test not in done]
                if worker.collected and not worker.test and waiting:
                    worker.run(waiting.pop())
    finally:
        for worker in workers:
            worker.leave()
        given_up = time.monotonic() + 10
        for worker in workers:
            if worker.collected and not worker.test:
                worker.process.join(max(0, given_up - time.monotonic()))
            worker.kill()
    return tests

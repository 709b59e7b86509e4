"""The process of the nursery: forks a child for each `flask` command it is told to run.

A command is a line of JSON; when it has ended, its exit code is written as a line.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

import flask_multilimit.operate.cli.check
import flask_multilimit.operate.cli.doctor
import flask_multilimit.operate.cli.limits
import flask_multilimit.operate.cli.quotas  # noqa: F401 - so that no child has to


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            become(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def become(arguments: list[str], environment: dict[str, str], streams: list[str]) -> None:
    """What ``python -m flask`` with these arguments is, its standard streams being these files."""
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["flask", *arguments]
    runpy.run_module("flask", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

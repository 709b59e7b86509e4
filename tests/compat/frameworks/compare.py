"""Real apps on Flask-Limiter and on the bridge: ``python compare.py appbuilder`` or ``ihatemoney``.

In an environment where that app and this package are installed (``nox -s bridge``). Raises SystemExit when they differ.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
OUTCOME = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED) (\S+)")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a folder of its own: pytest would take the settings and fixtures of ours."""
    command = [sys.executable, *arguments]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment(), cwd=folder)


def environment() -> dict[str, str]:
    paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def appbuilder() -> list[set[str]]:
    """The numbered lines that the app writes."""
    seen = []
    for which, module in (("theirs", "flask_limiter."), ("ours", "flask_multilimit.")):
        done = run(str(HERE / "appbuilder.py"), which)
        if done.returncode or f"limited by {module}" not in done.stderr or "429" not in done.stdout:
            raise SystemExit(f"{which}: {done.stderr}")
        seen.append({f"{number}: {line}" for number, line in enumerate(done.stdout.splitlines())})
    return seen


def ihatemoney() -> list[set[str]]:
    """The outcomes of its own tests."""
    seen = []
    for plugin in ([], ["-p", "on_the_bridge"]):
        done = run("-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *plugin, "--pyargs", "ihatemoney.tests")
        seen.append({" ".join(found) for found in OUTCOME.findall(done.stdout)})
        if not any(each.startswith("PASSED") and "throttler" in each for each in seen[-1]):
            raise SystemExit(f"{plugin}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return seen


def main() -> None:
    theirs, ours = {"appbuilder": appbuilder, "ihatemoney": ihatemoney}[sys.argv[1]]()
    sys.stdout.write(
        f"{sys.argv[1]}: {len(theirs)} on Flask-Limiter, {len(theirs & ours)} of them alike on the bridge\n"
    )
    if theirs != ours:
        lines = [*(f"- {each}" for each in sorted(theirs - ours)), *(f"+ {each}" for each in sorted(ours - theirs))]
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()

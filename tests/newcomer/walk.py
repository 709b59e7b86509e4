"""Does what a page says, from top to bottom, in an empty folder: ``walk.py PAGE WHEEL``.

Files are written, commands run in a shell, and what they print is compared with what the page shows. What the page
asks for in prose is in `PHRASES`. Five things are not as on the page: the wheel is installed instead of a checkout, the
ports are free ones, times may differ, the order of lines as well, and who has no ``curl`` or ``redis-cli`` gets the
like in Python.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import redis

from docs.snippets import NOWHERE, Block, blocks_of
from support.servers import Server, find_binaries

QUOTE = "curl -i http://127.0.0.1:5000/quote"
SECONDS = 20.0
INSTALL_SECONDS = 300.0
NUMBERS = {"three": 3, "four": 4, "five": 5, "six": 6}
FOREIGN = ("FLASK_", "MULTILIMIT_", "PYTHON", "VIRTUAL_ENV")
TIMES = re.compile(r"(?<=;t=)\d+|(?<=Retry-After: )\d+|\d+\.\d+")
"""What depends on how fast one is."""


class LostError(Exception):
    """The page says one thing, and another one happened."""


class Newcomer:
    """Has a folder, a shell, and a server that runs in another terminal."""

    def __init__(self, folder: Path, wheel: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.answer = ""
        """What the last command printed."""
        self._wheel = wheel
        self._stack = stack
        self._port = free_port()
        self._redis: Server | None = None
        self._app: subprocess.Popen[bytes] | None = None
        self._environment = {name: text for name, text in os.environ.items() if not name.startswith(FOREIGN)}
        stack.callback(self.stop)

    def write(self, name: str, text: str) -> None:
        if NOWHERE in text:
            text = text.replace(NOWHERE, self._redis_url())
        (self.folder / name).write_text(text, encoding="utf-8")

    def run(self, command: str) -> None:
        """Type ``command``."""
        words = shlex.split(command)
        if words[0] == "flask" and words[-1] == "run":
            self.stop()
            self.start(*words[1:-1])
        elif words[0] == "curl":
            words = [word.replace(":5000", f":{self._port}") for word in words[1:]]
            self.answer = self._shell(shlex.join(["curl", "-s", *words])) if shutil.which("curl") else _curl(*words)
        elif words[0] == "redis-cli" and not shutil.which("redis-cli"):
            self.answer = _redis_cli(self._redis_url(), *words[1:])
        else:
            command = re.sub(r"(?<=^redis-cli )", f"-u {self._redis_url()} ", command) if self._redis else command
            self.answer = self._shell(re.sub(r"(?<=^pip install )\S*flask-multilimit$", str(self._wheel), command))

    def start(self, *options: str) -> None:
        """Serve the app, until it is stopped; ``options`` of flask name another than that of ``app.py``."""
        with (self.folder / "flask.log").open("wb") as log:
            command = ["flask", *options, "run", "--port", str(self._port)]
            self._app = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {shlex.join(command)}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + SECONDS
        while not listens(self._port):
            if self._app.poll() is not None or time.monotonic() > deadline:
                raise LostError(f"the app is not served:\n{(self.folder / 'flask.log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        if self._app is not None:
            self._app.terminate()
            self._app.wait(SECONDS)
            self._app = None

    def _shell(self, command: str) -> str:
        """What ``command`` prints; what it exports stays, as in a terminal."""
        exported = self.folder / "environment"
        done = subprocess.run(
            ["/bin/sh", "-c", f"{command}\nstatus=$?; env -0 > {exported}; exit $status"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
        if done.returncode:
            raise LostError(f"ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        pairs = (pair.partition("=") for pair in exported.read_text().rstrip("\0").split("\0"))
        self._environment = {name: text for name, _, text in pairs}
        return done.stdout

    def _redis_url(self) -> str:
        if self._redis is None:
            self._redis = self._stack.enter_context(Server(next(iter(find_binaries().values())), tcp=True))
        return self._redis.tcp_url


# What the page asks for in prose


def _restart(newcomer: Newcomer, _: str) -> None:
    newcomer.stop()
    newcomer.start()


def _call(newcomer: Newcomer, times: str = "") -> None:
    for _ in range(NUMBERS[times] if times else 1):
        newcomer.run(QUOTE)


def _call_until_refused(newcomer: Newcomer, _: str) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        newcomer.run(QUOTE)
        if _status(newcomer) == 429:
            return
    raise LostError("nobody is refused")


def _wait_and_call_again(newcomer: Newcomer, _: str) -> None:
    _call(newcomer)
    wait = re.search(r"^Retry-After: (\d+)", newcomer.answer, re.MULTILINE)
    if _status(newcomer) != 429 or wait is None:
        raise LostError(f"it passes earlier:\n{newcomer.answer}")
    time.sleep(int(wait[1]))
    _call(newcomer)
    if _status(newcomer) != 200:
        raise LostError(f"it does not pass:\n{newcomer.answer}")


PHRASES: dict[str, Callable[[Newcomer, str], None]] = {
    r"Stop the server \(Ctrl\+C\), start it again|\bRestart\b": _restart,
    r"call (three|four|five|six) times": _call,
    r"call until you are refused": _call_until_refused,
    r"Wait that long and call again: the request passes": _wait_and_call_again,
    r"Restart, call `/quote`()": _call,
}
"""Each must be on the page."""


def walk(page: Path, newcomer: Newcomer) -> None:
    """Follow ``page``. Raises :class:`LostError`, which names the line."""
    lines = page.read_text(encoding="utf-8").splitlines()
    unread = set(PHRASES)
    at = 0
    for block in [*blocks_of(page), None]:
        opening = block.line - 1 if block else len(lines) + 1
        for number, phrase, detail in _asked(lines[at : opening - 1], at + 1):
            _take_step(page, number, partial(PHRASES[phrase], newcomer, detail))
            unread.discard(phrase)
        if block is not None:
            _follow(page, block, newcomer)
            at = next(number for number in range(opening, len(lines)) if lines[number].startswith("```")) + 1
    if unread:
        raise LostError(f"{page.name} does not say any more: {'; '.join(sorted(unread))}")


def _asked(prose: list[str], first: int) -> Iterator[tuple[int, str, str]]:
    """What is to be done, in order: its line, its phrase, and what the phrase leaves open."""
    text = "\n".join(prose)
    found = [(match, phrase) for phrase in PHRASES for match in re.finditer(phrase.replace(" ", r"\s"), text)]
    for match, phrase in sorted(found, key=lambda each: each[0].start()):
        yield first + text.count("\n", 0, match.start()), phrase, (match.groups() or ("",))[0]


def _follow(page: Path, block: Block, newcomer: Newcomer) -> None:
    if block.caption:
        _take_step(page, block.line, lambda: newcomer.write(block.caption, block.text))
    elif block.language == "console":
        for part in re.finditer(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
            line = block.line + block.text.count("\n", 0, part.start())
            _take_step(page, line, partial(newcomer.run, part[1]), f"$ {part[1]}")
            _take_step(page, line, partial(_compare_last, part[2], newcomer))
    elif block.language == "http":
        _take_step(page, block.line, lambda: _compare(block.text, newcomer.answer, among=True))
    else:
        raise LostError(f"{page.name}:{block.line}: nobody knows what to do with {block.language or 'this block'}")


def _take_step(page: Path, line: int, step: Callable[[], object], what: str = "") -> None:
    if what:
        print(f"{page.name}:{line}: {what}", flush=True)  # noqa: T201
    try:
        step()
    except (LostError, OSError, subprocess.SubprocessError) as error:
        raise LostError(f"{page.name}:{line}: {error}") from error


def _compare_last(shown: str, newcomer: Newcomer) -> None:
    _compare(shown, newcomer.answer)


def _compare(shown: str, printed: str, *, among: bool = False) -> None:
    """Whether ``printed`` is as shown, where that is anything; with ``among``, it may have other lines as well."""
    wanted = sorted(TIMES.sub("0", line) for line in shown.splitlines())
    lines = sorted(TIMES.sub("0", line.rstrip()) for line in printed.splitlines())
    if among:
        alike = set(wanted) <= set(lines)
    else:
        patterns = [re.escape(line).replace(r"\.\.\.", ".*") for line in wanted]
        alike = re.fullmatch("\n".join(patterns), "\n".join(lines)) is not None
    if wanted and not alike:
        raise LostError(f"shown is\n{shown}but this came\n{printed}")


def _status(newcomer: Newcomer) -> int:
    return int(newcomer.answer.split()[1])


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


# For those who have them not


def _curl(*arguments: str) -> str:
    try:
        response = urllib.request.urlopen(arguments[-1], timeout=SECONDS)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        head = f"HTTP/1.1 {response.status} {response.reason}\n{response.headers}" if "-i" in arguments else ""
        return f"{head}{response.read().decode()}"


def _redis_cli(url: str, *arguments: str) -> str:
    if arguments[:2] != ("--scan", "--pattern"):
        raise LostError(f"redis-cli is missing, and there is nothing in its place for {shlex.join(arguments)}")
    with redis.Redis.from_url(url) as client:
        return "".join(f"{key.decode()}\n" for key in client.scan_iter(arguments[2]))


def main(page: str, wheel: str) -> None:
    with tempfile.TemporaryDirectory(prefix="multilimit-") as folder, ExitStack() as stack:
        try:
            walk(Path(page), Newcomer(Path(folder), Path(wheel), stack))
        except LostError as error:
            sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])

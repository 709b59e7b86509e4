"""flask multilimit doctor: what is wrong, with its remedy."""

from pathlib import Path

from flask_multilimit.engine.algorithms import ALGORITHMS
from operate.cli.conftest import SHOP, Command
from support.servers import Binary, Server

PASSWORD = "hunter2"


def test_doctor_finds_no_problems_on_a_healthy_server(on_server: Command, server: Server) -> None:
    run = on_server("doctor")

    assert run.code == 0
    kind, version = server.binary.name.split("-", 1)
    told = run.out_on_one_line  # line ends depend on the length of the socket path
    assert f"ok storage {kind.capitalize()} {version} at unix://" in told
    assert f"ok script Loads and runs: {len(ALGORITHMS)} rules checked, charged and reset," in told
    assert run.out.endswith("\nNo problems found.\n")
    assert [key for key in server.client().scan_iter() if b"}:probe:" not in key] == []  # these expire in two seconds


def test_doctor_prints_json(on_server: Command) -> None:
    run = on_server("doctor", "--json")

    assert run.json["schema"] == 2
    assert run.json["healthy"] is True
    assert ", ".join(found["name"] for found in run.json["findings"]) == (
        "declarations, addresses, users, traffic, control, storage, latency, clock, eviction, lazy freeing, "
        "persistence, script"
    )
    assert all(set(found) == {"name", "level", "text", "remedy"} for found in run.json["findings"])


def test_doctor_reports_unreachable_server_with_remedy(tmp_path: Path) -> None:
    run = Command(SHOP, f"unix://{tmp_path}/none")("doctor")

    assert run.code == 1
    assert "WRONG    storage        No answer from" in run.out
    assert "> Start the server, or correct the storage URI." in run.out
    assert run.out.endswith("\n1 problem found.\n")


def test_doctor_reports_a_server_that_answers_it_but_no_checks(server_binaries: dict[str, Binary]) -> None:
    """As while writes are paused, or behind a proxy. This one closes connections before longer replies."""
    options = ["--client-output-buffer-limit", "normal", "1", "1", "1"]
    with Server(next(iter(server_binaries.values())), options=options) as hasty:
        run = Command(SHOP, hasty.url)("doctor")

    assert run.code == 1
    assert "ok       storage" in run.out
    assert "WRONG    script         the rate limit storage gave no answer" in run.out


def test_doctor_and_keys_never_show_a_password(server_binaries: dict[str, Binary]) -> None:
    def with_password(password: str) -> Command:
        return Command(SHOP, strict.tcp_url.replace("redis://", f"redis://:{password}@"))

    with Server(next(iter(server_binaries.values())), tcp=True, options=["--requirepass", PASSWORD]) as strict:
        right, wrong = with_password(PASSWORD), with_password("hunter2but-wrong")
        in_query = Command(SHOP, f"{strict.tcp_url}?password={PASSWORD}")
        runs = [right("doctor"), in_query("doctor"), wrong("doctor"), wrong("keys")]

    assert [run.code for run in runs] == [0, 0, 1, 1]
    assert "The user or the password in the storage URI is wrong." in runs[2].out_on_one_line
    for run in runs:
        assert PASSWORD not in run.out + run.err

"""The options of check and reset that name a subject, and errors about them."""

import pytest
from flask.testing import FlaskClient

from operate.cli.conftest import Command


@pytest.mark.parametrize(
    ("given", "address"),
    [
        *((each, "203.0.113.7") for each in ("203.0.113.7:50001", "[::ffff:203.0.113.7]:50001", "::ffff:203.0.113.7")),
        *((each, "2001:db8::2") for each in ("2001:db8::1", "2001:db8::/64")),
    ],
)
def test_check_and_reset_accept_an_address_with_a_port_and_an_ipv6_network(
    on_server: Command, shop: FlaskClient, given: str, address: str
) -> None:
    client = {"REMOTE_ADDR": address}
    assert [shop.get("/update", environ_base=client).status_code for _ in range(3)] == [200, 200, 200]

    (answer,) = on_server("check", "update", "--ip", given, "--json").json["requests"]

    assert [rule["remaining"] for rule in answer["rules"]][1] == 0
    assert on_server("reset", "update", "--ip", given, "--yes").code == 0
    assert shop.get("/update", environ_base=client).status_code == 200


WRONG = {
    "check updaet": 'no endpoint is called "updaet"; did you mean "update"?',
    "check nonsense": 'no endpoint is called "nonsense"; `flask routes` lists the endpoints',
    "reset shop:charge --user ann --yes": 'no endpoint is called "shop:charge"; `flask routes` lists the endpoints; '
    "for a function or a check, give --all in place of it",
    "check update --ip localhost": "'localhost' is not an IP address",
    "check update --ip 2001:db8::/48": "IPv6 addresses of one /64 count as one client",
    "reset --all --ip 2001:db8::1/64 --yes": "'2001:db8::1/64' is not an IP address",
    "check update --ip 203.0.113.7/32": "'203.0.113.7/32' is not an IP address",
    "check update --user 1 --subject user:2": "user: give each type once, as a subject or by itself",
    "check update --subject api_key": "subject 'api_key': give TYPE:VALUE",
    "check update --subject feed::1": "subject 'feed::1': this is an IPv6 address; give TYPE:VALUE",
    "reset update --yes": "Say whose quotas: --ip, --user, --subject or --everyone.",
    "reset --all --yes": "Say whose quotas: --ip, --user, --subject or --everyone.",
    "reset --ip 203.0.113.7 --yes": "Say where: an ENDPOINT, or --all; or --everything.",
    "reset update --all --ip 203.0.113.7 --yes": "Say where: an ENDPOINT, or --all",
    "reset --everything --ip 203.0.113.7 --yes": "--everything resets all subjects",
    "reset --all --ip 203.0.113.7 --method GET --yes": "--method is for an ENDPOINT",
    "reset update --user ann --yes": 'no limit at "update" counts user; it is limited by default '
    "(--everyone), ip (--ip)",
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.items(), ids=WRONG)
def test_wrong_or_missing_arguments_of_check_and_reset_are_errors(
    on_memory: Command, arguments: str, message: str
) -> None:
    run = on_memory(*arguments.split())
    assert run.code != 0
    assert message in run.err
    assert run.out == ""


@pytest.mark.parametrize(
    "command", ["check update --ip 203.0.113.7", "reset update --ip 203.0.113.7 --yes", "keys", "top --once"]
)
def test_command_is_an_error_when_storage_is_memory_of_other_processes(on_memory: Command, command: str) -> None:
    run = on_memory(*command.split())
    assert (run.code, run.out) == (1, "")
    assert "MULTILIMIT_STORAGE_URI=memory:// keeps quotas in the memory of each worker process" in run.err

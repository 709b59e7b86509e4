"""The options that name a subject, and what they are called in an answer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Network, ip_address

import click

from ...declare.addresses import network_of, without_port
from ...declare.subjects import EVERYONE, LimitType
from ...engine import ConfigurationError
from ...serve.gate import AppGate
from .base import C


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    try:
        if value and "/" in value:
            return str(IPv6Network(value))
        return value and str(ip_address(without_port(value)))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not an IP address", context, parameter) from None


def require_counted(gate: AppGate, given: Mapping[str, str]) -> None:
    """Raise an error for a network that limits do not count as one client."""
    network, prefix = given.get(LimitType.IP.value, ""), gate.settings.ipv6_prefix
    if "/" in network and network_of(network.partition("/")[0], prefix) != network:
        raise ConfigurationError(
            f"--ip {network}: IPv6 addresses of one /{prefix} count as one client; give one of them"
        )


def _subjects(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    subjects = {}
    for given in value:
        type_name, equals, subject = given.partition("=")
        if not (type_name and equals):
            raise click.BadParameter(f"{given!r}: write TYPE=VALUE, such as api_key=abc", context, parameter)
        subjects[type_name] = subject
    return subjects


def who_options(command: C) -> C:
    """The options that name the subject."""
    options = (
        click.option("--method", type=str.upper, metavar="METHOD", help="Only this request method; default: all."),
        click.option(
            "--ip",
            callback=_address,
            metavar="ADDRESS",
            help="A client address, or an IPv6 network that counts as one.",
        ),
        click.option("--user", metavar="ID", help="A user, by the id that the user_loader returns."),
        click.option(
            "--subject",
            "subjects",
            multiple=True,
            callback=_subjects,
            metavar="TYPE=VALUE",
            help="A subject of any type, by the name of its limiter; anonymous=ADDRESS for a client without a login.",
        ),
    )
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def options_for(parts: Sequence[str]) -> str:
    options = {"ip": "--ip", "user": "--user", EVERYONE.type: "--everyone"}
    return " and ".join(options.get(part) or f"--subject {part}=..." for part in parts)

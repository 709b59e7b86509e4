"""``flask multilimit config`` and ``schema``: the settings in force, and what a file of limits may say."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import click
from flask import current_app

from ...config import PREFIX, Settings
from ...declare.advice import EXTENSION
from ...declare.data import json_schema
from ...engine.errors import brief
from ...engine.storage.addresses import redacted
from .. import console
from .base import as_json, command, current_gate, for_people, write, write_json

ENVIRONMENT = "FLASK_"
"""The prefix that ``app.config.from_prefixed_env()`` reads."""


class Setting(NamedTuple):
    """One setting in force."""

    name: str
    value: str
    source: str
    """Where it comes from."""


@command("config", short_help="Show the settings in force, and where each comes from.")
@as_json
def config_command(as_json: bool) -> None:
    """Show the settings in force, and where each comes from. Passwords are hidden."""
    with for_people():
        settings = settings_of(current_gate().settings, vars(current_app.extensions[EXTENSION]).get("_storage"))
    if as_json:
        write_json(settings=[setting._asdict() for setting in settings])
        return
    rows = [(each.name, each.value, each.source) for each in settings]
    write(console.columns(rows, headings=("SETTING", "VALUE", "FROM")))


def settings_of(settings: Settings, storage: Any) -> list[Setting]:
    """The settings in the order of the documentation, with the values from arguments of MultiLimit."""
    return [_setting(settings, field, storage) for field in type(settings).model_fields]


def _setting(settings: Settings, field: str, storage: Any) -> Setting:
    name, value = PREFIX + field.upper(), getattr(settings, field)
    if field == "storage_uri" and storage is not None:
        shown = redacted(storage) if isinstance(storage, str) else f"a {type(storage).__name__}"
        return Setting(name, shown, "MultiLimit(storage=...)")
    source = "default"
    if field in settings.model_fields_set:
        source = f"environment ({ENVIRONMENT}{name})" if ENVIRONMENT + name in os.environ else "app.config"
    shown = redacted(value) if field == "storage_uri" else brief(value)
    return Setting(name, shown, source)


@click.command("schema", short_help="Print the JSON Schema of a file of limits.")
def schema_command() -> None:
    """Print the JSON Schema (draft 2020-12) of the file that MULTILIMIT_FILE names, for completion in editors."""
    console.write_json(json_schema())

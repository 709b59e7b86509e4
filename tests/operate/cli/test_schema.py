"""``flask multilimit schema`` prints what editors complete a file of limits by."""

from __future__ import annotations

import json

from flask import Flask

from flask_multilimit import MultiLimit
from flask_multilimit.declare.data import json_schema


def test_prints_the_schema(app: Flask) -> None:
    MultiLimit(app)

    result = app.test_cli_runner().invoke(args=["multilimit", "schema"])

    assert (result.exit_code, json.loads(result.output)) == (0, json_schema())

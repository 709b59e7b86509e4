"""The JSON Schema of a file of limits, with the descriptions of the options in the source."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from pydantic import BaseModel

from .data import LimitsFile, Written

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12)."""
    schema = {"$schema": SCHEMA, "$id": "urn:flask-multilimit:limits", **LimitsFile.model_json_schema(by_alias=True)}
    models = {model.__name__: model for model in Written.__subclasses__()}
    _describe(schema, LimitsFile)
    for name, definition in schema["$defs"].items():
        _describe(definition, models[name])
    return schema


def _describe(definition: dict[str, Any], model: type[BaseModel]) -> None:
    """Describe each property by the string below its field. pydantic could do so by itself, but would read the source
    whenever the models are imported."""
    told = _docstrings_of(model)
    for name, field in model.model_fields.items():
        if name in told:
            definition["properties"][field.alias or name]["description"] = told[name]


def _docstrings_of(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field."""
    body = ast.parse(inspect.getsource(model)).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            text = getattr(below.value, "value", None)
            if isinstance(text, str):
                found[field.target.id] = inspect.cleandoc(text)
    return found

"""Changes to the limits of an app while it runs."""

from flask import Flask

from flask_multilimit.control import Control
from flask_multilimit.serve.gate import gate_of


def control_of(app: Flask) -> Control:
    """Changes limits of ``app`` from outside of its requests, as an operator does."""
    return gate_of(app).applier.control

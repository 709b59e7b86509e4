"""An application factory with blueprints. All limits are in one file, ``limits.json``, for operators.

    flask --app examples/app_factory run

    curl -i 'http://localhost:5000/shop/search?q=pear'

A name in that file that matches no endpoint or blueprint is an error when the app is made. You can also set every
setting from outside: with FLASK_MULTILIMIT_STORAGE_URI=redis://localhost:6379/0, all processes share the quotas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flask import Flask

from . import admin, shop
from .extensions import multilimit


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    app = Flask(__name__)
    app.config.from_file("limits.json", load=json.load)
    app.config.from_prefixed_env()
    app.config.from_mapping(config)
    multilimit.init_app(app)

    app.register_blueprint(shop.blueprint, url_prefix="/shop")
    app.register_blueprint(admin.blueprint, url_prefix="/admin")

    @app.get("/health")
    def health() -> str:
        return "well\n"

    multilimit.validate(app)
    return app

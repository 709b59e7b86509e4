"""A Flask-AppBuilder app with limits of log-ins and of an API: what the same requests see on either library.

``python appbuilder.py theirs`` or ``ours`` writes one line a request. ``compare.py`` runs both.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

WHICH = sys.argv[1]
if WHICH == "ours":
    from flask_multilimit.compat import install

    install()

from flask import Flask  # noqa: E402 - finds what is installed
from flask_appbuilder import AppBuilder, BaseView, expose  # noqa: E402
from flask_appbuilder.api import BaseApi  # noqa: E402
from flask_appbuilder.security.decorators import limit  # noqa: E402
from flask_appbuilder.utils.legacy import get_sqla_class  # noqa: E402


class Prices(BaseApi):  # type: ignore[misc]
    resource_name = "prices"

    @expose("/all")  # type: ignore[untyped-decorator]
    def all(self) -> Any:
        return self.response(200, prices=[1, 2])

    @expose("/some")  # type: ignore[untyped-decorator]
    @limit("2/minute", methods=("GET",), error_message="too many prices")  # type: ignore[untyped-decorator]
    def some(self) -> Any:
        return self.response(200, prices=[1])


class Offers(BaseView):  # type: ignore[misc]
    default_view = "index"

    @expose("/index")  # type: ignore[untyped-decorator]
    def index(self) -> str:
        return "offers"


def create(folder: Path) -> Flask:
    app = Flask("shop")
    app.config.update(
        SECRET_KEY="x" * 40,
        SQLALCHEMY_DATABASE_URI=f"sqlite:///{folder / 'shop.db'}",
        SQLALCHEMY_TRACK_MODIFICATIONS=False,
        WTF_CSRF_ENABLED=False,
        AUTH_RATE_LIMITED=True,
        AUTH_RATE_LIMIT="3 per 40 second",
        RATELIMIT_ENABLED=True,
        RATELIMIT_STORAGE_URI="memory://",
        RATELIMIT_APPLICATION="60/minute",
        RATELIMIT_HEADERS_ENABLED=True,
    )
    database = get_sqla_class()()
    database.init_app(app)
    with app.app_context():
        builder = AppBuilder(app, database.session)
        builder.add_api(Prices)
        builder.add_view_no_menu(Offers)
        builder.sm.add_user("ann", "Ann", "Lee", "ann@example.org", builder.sm.find_role("Admin"), "right")
    return app


def requests_of_a_visitor() -> list[tuple[str, str, Any]]:
    """Requests that are refused come last, because the bridge counts them nowhere."""
    right, wrong = ({"username": "ann", "password": text} for text in ("right", "wrong"))
    asked: list[tuple[str, str, Any]] = [("GET", "/login/", None)] * 5
    asked += [("GET", "/offers/index", None), ("GET", "/nowhere", None), ("GET", "/static/appbuilder/no", None)]
    asked += [("POST", "/login/", wrong)] * 2 + [("POST", "/login/", right), ("GET", "/login/", None)]
    asked += [("GET", "/api/v1/prices/all", None)] * 2 + [("GET", "/api/v1/prices/some", None)] * 2
    asked += [("POST", "/login/", right)] * 2
    return asked + [("GET", "/api/v1/prices/all", None), ("GET", "/api/v1/prices/some", None)] * 2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = create(Path(folder))
        (limiter,) = app.extensions["limiter"]
        sys.stderr.write(f"limited by {type(limiter).__module__}\n")
        client = app.test_client()
        for method, path, form in requests_of_a_visitor():
            response = client.open(path, method=method, data=form)
            fields = [response.headers.get(f"X-RateLimit-{name}") for name in ("Limit", "Remaining")]
            refused = "too many" in response.text or " per " in response.text
            sys.stdout.write(f"{method} {path} {response.status} {response.mimetype} {fields} {refused}\n")


if __name__ == "__main__":
    main()

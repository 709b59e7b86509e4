"""The dashboard: see and steer limits in a browser. ``from flask_multilimit.dashboard import Dashboard``."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from flask import Response, request, send_file
from flask.sansio.app import App
from werkzeug.exceptions import NotFound, RequestURITooLarge

from .declare.advice import app_in_force
from .engine import ConfigurationError
from .engine.errors import brief
from .engine.text import LONGEST_QUERY
from .extension import MultiLimit
from .operate.blueprints import StrictBlueprint
from .operate.dashboard import api, pages, whatif
from .operate.dashboard.forms import LARGEST_FORM, require_small_body
from .operate.dashboard.shell import POLICY, STATIC, complete, is_file, refusal_page, version_of
from .operate.dashboard.visit import Authenticator, Authorize, MayChange

__all__ = ["Dashboard"]


class Dashboard(StrictBlueprint):
    """Pages that show what limits do, and change them while the app runs.

    .. code-block:: python

        dashboard = Dashboard(multilimit, authorize=lambda: current_user.name if current_user.is_admin else None)
        app.register_blueprint(dashboard)

    :param url_prefix: where the pages are.
    :param authorize: called in each request to the dashboard. Returns the name of the visitor, which the history of
        changes records, or ``None`` to answer with a 403. It may ``abort`` with a response of its own, such as a
        redirect to a login page or a 401. Without it, the dashboard is for development: only apps in debug mode can
        register it, and it answers only this machine.
    :param may_change: called with that name: whether this visitor may change limits and lists. By default, every
        visitor may. Others see the same pages without the forms.
    :param name: of the blueprint.

    Changes need a ``SECRET_KEY``. The pages show the limits and traffic of the app that serves them; they are neither
    limited nor counted themselves.
    """

    _may_be_shared = False
    enable_openapi = False
    """APIFlask reads this of each blueprint with ``before_request`` functions when it writes its document."""

    def __init__(
        self,
        multilimit: MultiLimit,
        *,
        url_prefix: str = "/multilimit",
        authorize: Authorize | None = None,
        may_change: MayChange | None = None,
        name: str = "multilimit",
    ) -> None:
        if not isinstance(multilimit, MultiLimit):
            raise ConfigurationError(f"Dashboard: multilimit={brief(multilimit)}: give the MultiLimit of the app")
        static = {"static_folder": "operate/dashboard/static", "static_url_path": "/static"}
        super().__init__(multilimit, name, __name__, url_prefix=url_prefix, **static)
        self._authenticator = Authenticator(authorize, may_change)
        self._add_pages()

    def register(self, app: App, options: dict[str, Any]) -> None:
        """Raise :class:`ConfigurationError` without ``authorize``, unless ``app`` is in debug mode, and if ``app`` has
        another :class:`MultiLimit`."""
        self._authenticator.require_authorize(app)
        super().register(app, options)

    def send_static_file(self, filename: str) -> Response:
        if filename not in STATIC:
            raise NotFound
        content = STATIC[filename]
        return send_file(BytesIO(content), download_name=filename, etag=version_of(content))

    def _policy(self) -> str:
        return POLICY

    def _add_pages(self) -> None:
        self.before_request(self._begin)
        self.after_request(complete)
        for status in (400, 403, 411, 413, 414, 429, 503):
            self.register_error_handler(status, refusal_page)
        self.add_url_rule("/", "now", pages.now_page)
        self.add_url_rule("/limits", "limits", pages.limits_page)
        self.add_url_rule("/change", "change", pages.change_page)
        self.add_url_rule("/change", "make_change", pages.make_change, methods=["POST"])
        self.add_url_rule("/undo", "undo", pages.undo, methods=["POST"])
        self.add_url_rule("/subject", "subject", pages.subject_page)
        self.add_url_rule("/reset", "reset", pages.reset, methods=["POST"])
        self.add_url_rule("/unban", "unban", pages.unban, methods=["POST"])
        self.add_url_rule("/lists", "lists", pages.lists_page)
        self.add_url_rule("/history", "history", pages.history_page)
        self.add_url_rule("/what-if", "what_if", whatif.what_if_page, methods=["GET", "POST"])
        self.add_url_rule("/api/", "api", api.index)
        self.add_url_rule("/api/openapi.json", "api_document", api.api_document)
        for operation in api.OPERATIONS:
            self.add_url_rule(f"/api/{operation.name}", operation.endpoint, operation.view)

    def _begin(self) -> None:
        """Let the visitor in, or raise. Everybody gets the static files, which are also in the package."""
        if is_file():
            return
        if len(request.query_string) > LONGEST_QUERY:
            raise RequestURITooLarge
        self._require_served(app_in_force())
        self._authenticator.begin_visit()
        if request.method == "POST":
            if request.endpoint == f"{request.blueprint}.what_if":  # it uploads logs
                require_small_body(LARGEST_FORM + whatif.MOST_UPLOADED, whatif.TOO_LARGE)
            else:
                require_small_body(LARGEST_FORM, "This form is too large.")

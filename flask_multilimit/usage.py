"""What is left: a page for customers, and JSON for their programs. ``from flask_multilimit.usage import Usage``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flask import Response

from .declare.advice import app_in_force
from .engine import ConfigurationError, StorageDenied
from .engine.errors import brief, check_iterable
from .extension import MultiLimit
from .insight.bans import BegunBan
from .insight.standing import BanStanding, ListStanding, RequestStanding, RuleStanding, Standing
from .insight.usage import BannedFrom, Quota, Quotas, Wanted, quotas_of_client
from .operate import usage as pages
from .operate.blueprints import StrictBlueprint
from .serve.gate import gate_in_force, gate_of

__all__ = [
    "BanStanding",
    "BannedFrom",
    "BegunBan",
    "ListStanding",
    "Quota",
    "Quotas",
    "RequestStanding",
    "RuleStanding",
    "Standing",
    "Usage",
]


class Usage(StrictBlueprint):
    """Tells a client what is left of its limits: as JSON, or as a page for browsers.

    .. code-block:: python

        app.register_blueprint(Usage(multilimit))

    :param url_prefix: the path that answers; the schema of the JSON is at ``schema.json`` below it.
    :param endpoints: only limits of these endpoints: names or patterns, such as ``["api.*"]``. Clients see the names.
    :param limits: only these limits: names of rules as in header fields, or of limiters. A dict gives them labels for
        people: ``{"monthly": "Calls this month"}``.
    :param name: of the blueprint.

    A client learns only about itself. A request charges nothing and costs one command. It is not counted as traffic,
    and is limited only if you put limits on this blueprint.
    """

    def __init__(
        self,
        multilimit: MultiLimit,
        *,
        url_prefix: str = "/rate_limit",
        endpoints: Iterable[str] = (),
        limits: Iterable[str] | Mapping[str, str] = (),
        name: str = "usage",
    ) -> None:
        if not isinstance(multilimit, MultiLimit):
            raise ConfigurationError(f"Usage: multilimit={brief(multilimit)}: give the MultiLimit of the app")
        super().__init__(multilimit, name, __name__, url_prefix=url_prefix)
        check_iterable("endpoints", endpoints)
        if not isinstance(limits, Mapping):
            check_iterable("limits", limits)
            limits = dict.fromkeys(limits, "")
        self._wanted = Wanted(tuple(endpoints), limits)
        self.after_request(pages.vary)
        self.add_url_rule("", "show", self._show)
        self.add_url_rule("/schema.json", "schema", pages.schema)

    def _policy(self) -> str:
        return pages.policy()

    def quotas(self) -> Quotas:
        """What is left for the client of the current request, for a page of your own.

        Raises :class:`StorageError` if the storage is down and ``on_storage_error`` is ``deny`` or ``raise``.
        """
        app = app_in_force()
        self._require_served(app)
        gate = gate_of(app)
        self._wanted.require_known(gate)
        return quotas_of_client(gate, self._wanted)

    def _show(self, **_: object) -> Response:
        try:
            return pages.answer(self.quotas())
        except StorageDenied as error:
            raise gate_in_force().unavailable(error) from error

"""What our blueprints have in common: where they may stand, and header fields that keep a browser strict."""

from __future__ import annotations

from flask.sansio.app import App

from ..declare.advice import EXTENSION
from ..engine import ConfigurationError
from ..engine.errors import brief, check_text

STRICT = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def check_place(called: str, name: object, url_prefix: object) -> None:
    """Raise :class:`ConfigurationError` for a name or a path that no blueprint can have."""
    check_text(f"{called}: name", name)
    check_text(f"{called}: url_prefix", url_prefix)
    if url_prefix and not str(url_prefix).startswith("/"):
        raise ConfigurationError(f"{called}: url_prefix={brief(url_prefix)}: give a path such as /limits")


def require_served(called: str, app: App, multilimit: object) -> None:
    """Raise :class:`ConfigurationError` unless the limits of ``app`` are those of ``multilimit``."""
    if app.extensions.get(EXTENSION) is not multilimit:
        raise ConfigurationError(
            f"the app {app.name!r} does not have the MultiLimit that its {called} was given: call "
            "multilimit.init_app(app)"
        )

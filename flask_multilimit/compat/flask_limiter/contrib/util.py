"""The address of the client behind Cloudflare."""

from __future__ import annotations

from flask import request


def get_remote_address_cloudflare() -> str:
    """The address in ``CF-Connecting-IP``; 400 for a request without this field.

    Anyone who reaches the app without Cloudflare can write this field.
    """
    return request.headers["CF-Connecting-IP"] or "127.0.0.1"

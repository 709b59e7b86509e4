"""Leaves out tests that need an environment of their own."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("httpbin") else ["test_night.py"]

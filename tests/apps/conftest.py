"""Leaves out tests that need an environment of their own."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("httpbin") else ["test_night.py"]

"""The example of the dashboard shows traffic soon after somebody looks."""

from __future__ import annotations

import json
import time

from support.processes import flask_run

PATIENCE = 60.0
"""Seconds, as long as a newcomer should wait at most."""


def test_the_dashboard_example_shows_traffic_within_a_minute() -> None:
    deadline = time.monotonic() + PATIENCE
    with flask_run("dashboard") as served:
        assert "/multilimit/" in served.get("/").text
        while True:
            now = json.loads(served.get("/multilimit/api/now").text)
            replayed = json.loads(served.get("/multilimit/api/what-if").text or "null")
            if now["totals"]["refused"]["amount"] and now["subjects"] and replayed and replayed["clients"] > 1:
                break
            assert time.monotonic() < deadline, now["totals"]
            time.sleep(0.5)

        for page in ("", "limits", "subject?who=203.0.113.66", "lists", "history", "what-if"):
            assert served.get(f"/multilimit/{page}").status == 200

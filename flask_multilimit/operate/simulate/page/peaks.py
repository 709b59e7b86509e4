"""The peaks of clients, with a slider that shows what each count would refuse.

Another page can use the slider too. It contains :func:`slider_element`, and serves ``slider.css`` and ``slider.js``
(:func:`.document.part`) as its own files, the script after the elements or deferred. The Content-Security-Policy
``script-src 'self'; style-src 'self'`` is enough: the data is in a ``<script type="application/json">``, which no
browser runs.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TypedDict

from ..suggest import Suggestion, Traffic, curve
from .document import data_element, document, plain, text

NAMED = 200
"""The number of clients that a page names, those with the largest peaks."""

_PART = """<h2>In any {window} seconds</h2>
<p>Half of the clients make at most {p50} requests, 90 % at most {p90}, 99 % at most {p99}, 99.9 % at most {p999}; the
busiest makes {max}.</p>
{slider}
"""


class Slider(TypedDict):
    """The data of the slider, in types of JSON."""

    window: str
    """Seconds."""
    requests: int
    clients: int
    chosen: int
    """The count where it stands at first."""
    peaks: list[list[int]]
    """``[peak, number of clients with it]``, the smallest peak first."""
    curve: list[list[int]]
    """``[count, requests that it refuses]``, the smallest count first. The chosen one is among them."""
    names: list[list[str | int]]
    """``[client, peak, requests]`` for the clients with the largest peaks."""


def page_of(found: Suggestion, traffic: Traffic) -> str:
    """The whole page."""
    parts, choices = [], []
    for number, peaks in enumerate(found.peaks):
        chosen = found.for_requests[number].rules[0].count
        shown = {name: f"{getattr(peaks, name):,}" for name in ("p50", "p90", "p99", "p999", "max")}
        slider = slider_element(peaks_data(traffic.of_window(number), chosen))
        parts.append(_PART.format(window=f"{peaks.window:g}", slider=slider, **shown))
        choices.append(f"{chosen:,} per {peaks.window:g} seconds")
    about = (
        f"{found.requests:,} requests of {found.subjects:,} clients (type: {text(found.type)}). At first, each slider "
        f"stands at the smallest count that by itself refuses at most {100 * float(found.share):g} % of the requests."
    )
    without_script = f"The slider needs JavaScript. These counts are chosen: {', '.join(choices)}."
    body = f"<p>{about}</p>\n<noscript><p>{escape(without_script)}</p></noscript>\n{''.join(parts)}"
    return document("How many requests clients make", body, styles=("page.css", "slider.css"), script="slider.js")


def slider_element(data: Slider) -> str:
    """The element, as HTML, that ``slider.js`` turns into a slider."""
    return f'<div class="peaks">{data_element(data)}</div>'


def peaks_data(traffic: Traffic, chosen: int, *others: int) -> Slider:
    """The data of the slider for traffic with one window. It starts at the ``chosen`` count. For this one and the
    ``others`` the refusals are exact."""
    ordered = sorted(traffic.subjects.items(), key=lambda each: (-each[1][0], each[0]))
    many = sorted(Counter(peak for (peak,) in traffic.subjects.values()).items())
    return {
        "window": f"{traffic.windows[0]:g}",
        "requests": traffic.arrivals.requests,
        "clients": len(traffic.arrivals),
        "chosen": chosen,
        "peaks": [list(each) for each in many],
        "curve": [[point.count, point.requests] for point in curve(traffic, chosen, *others)],
        "names": [[plain(name), peak, len(traffic.arrivals[name])] for name, (peak,) in ordered[:NAMED]],
    }

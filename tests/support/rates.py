"""The algorithms that limit a rate: all but those whose units are slots, which nobody knows when they are free."""

from __future__ import annotations

from flask_multilimit.engine.algorithms import ALGORITHMS

RATES = [name for name, algorithm in ALGORITHMS.items() if not hasattr(algorithm, "renew")]

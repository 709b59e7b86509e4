"""The algorithms that limit a rate: all except those whose units are slots, which become free at unknown times."""

from flask_multilimit.engine.algorithms import ALGORITHMS

RATES = [name for name, algorithm in ALGORITHMS.items() if not hasattr(algorithm, "renew")]

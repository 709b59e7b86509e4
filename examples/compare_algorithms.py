"""The same traffic through all six algorithms.

    python examples/compare_algorithms.py                    # prints what each admits
    python examples/compare_algorithms.py algorithms.png     # draws it as well: pip install 'flask-multilimit[plot]'

Every rule is "10 in 10 seconds". The example sets the clock itself, so nothing waits, and every run is the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flask_multilimit import Rule
from flask_multilimit.engine import Limiter, MemoryStorage, hits_for

SECOND = 1_000_000
WINDOW, COUNT = 10, 10
LENGTH = 60

RULES = {
    "sliding_window": Rule(WINDOW, COUNT),
    "fixed_window": Rule(WINDOW, COUNT, algorithm="fixed_window"),
    "sliding_window_counter": Rule(WINDOW, COUNT, algorithm="sliding_window_counter"),
    "token_bucket": Rule(WINDOW, COUNT, algorithm="token_bucket"),
    "leaky_bucket": Rule(WINDOW, COUNT, algorithm="leaky_bucket", max_delay=5),
    "gcra": Rule(WINDOW, COUNT, algorithm="gcra"),
}
"""The leaky bucket as a queue; as a meter it would be the token bucket once more."""


def traffic() -> list[float]:
    """Seconds: a burst across the edge of a window, then a steady stream, silence, and a flood."""
    burst = [0.0, *(9.2 + n * 0.07 for n in range(22))]
    steady = [14 + n * 0.8 for n in range(20)]
    flood = [40 + n * 0.2 for n in range(70)]
    return sorted(burst + steady + flood)


def drive(rule: Rule, arrivals: list[float]) -> tuple[list[float], list[float]]:
    """When the admitted requests run (in a queue, later than they arrive), and when the refused ones arrive."""
    now = 0
    limiter = Limiter(MemoryStorage(lambda: now))
    plan = hits_for(rule, scope="example")
    admitted, refused = [], []
    for arrival in arrivals:
        now = round(arrival * SECOND)
        decision = limiter.check(plan)
        if decision.allowed:
            admitted.append(round(arrival + decision.delay, 6))
        else:
            refused.append(arrival)
    return admitted, refused


def most_in_a_window(instants: list[float]) -> int:
    """The largest number in any 10 seconds."""
    return max(len(window_at(at, instants)) for at in instants)


def window_at(end: float, instants: list[float]) -> list[float]:
    """The requests in the 10 seconds before ``end``; one that is exactly 10 seconds old no longer counts."""
    return [at for at in instants if round(end - WINDOW, 6) < at <= end]


def print_table(arrivals: list[float]) -> None:
    print(f"{len(arrivals)} requests in {LENGTH} s; every rule is {COUNT} in {WINDOW} s\n")
    print(f"{'':24}admitted  most in any {WINDOW} s")
    for name, rule in RULES.items():
        admitted, _ = drive(rule, arrivals)
        print(f"{name:24}{len(admitted):8}{most_in_a_window(admitted):18}")


def draw(arrivals: list[float], path: Path) -> None:
    """One row per algorithm: what arrived, what ran, and how much of it was within the last 10 seconds."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - only a picture needs it
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        sys.exit("drawing needs matplotlib: pip install 'flask-multilimit[plot]'")
    mpl.use("agg")
    # Okabe and Ito's colours, which everybody can tell apart; shapes and positions carry the same information.
    ran, came, over, grey = "#0072B2", "#999999", "#D55E00", "#444444"
    plt.rcParams.update({"font.size": 9, "font.family": "DejaVu Sans", "text.color": grey, "axes.edgecolor": "#bbbbbb"})
    figure, rows = plt.subplots(len(RULES), 1, figsize=(8, 8.4), sharex=True, sharey=True, layout="constrained")
    instants = [tenth / 20 for tenth in range(LENGTH * 20 + 1)]
    for row, (name, rule) in zip(rows, RULES.items(), strict=True):
        admitted, refused = drive(rule, arrivals)
        within = [len(window_at(at, admitted)) for at in instants]
        row.fill_between(instants, within, step="post", color=ran, alpha=0.18, linewidth=0)
        row.fill_between(
            instants, [max(n, COUNT) for n in within], COUNT, step="post", color=over, alpha=0.55, linewidth=0
        )
        row.axhline(COUNT, color=grey, linewidth=0.8, linestyle=(0, (4, 3)))
        row.plot(admitted, [-3] * len(admitted), "|", color=ran, markersize=9, markeredgewidth=1.3)
        row.plot(refused, [-6.5] * len(refused), "|", color=came, markersize=6, markeredgewidth=0.9)
        most = most_in_a_window(admitted)
        title = f"{name} (queue)" if rule.max_delay else name
        row.set_title(title, loc="left", fontsize=10, fontweight="bold", pad=3)
        row.set_title(
            f"{len(admitted)} admitted, at most {most} in any {WINDOW} s",
            loc="right",
            fontsize=9,
            color=over if most > COUNT else grey,
            pad=3,
        )
        row.set_yticks([-6.5, -3, 0, COUNT, 2 * COUNT], ["refused", "run", "0", "10", "20"])
        row.set_ylim(-9, 21)
        row.spines[["top", "right"]].set_visible(False)
        row.tick_params(colors=grey, length=2)
    rows[-1].set_xlim(-1, LENGTH)
    rows[-1].set_xlabel("seconds", color=grey)
    figure.suptitle(
        f"The same {len(arrivals)} requests, each rule {COUNT} in {WINDOW} s. "
        f"Area: requests run in the last {WINDOW} s.",
        fontsize=10,
        color=grey,
    )
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    arrivals = traffic()
    print_table(arrivals)
    for path in sys.argv[1:2]:
        draw(arrivals, Path(path))
        print(f"\ndrawn: {path}")


if __name__ == "__main__":
    main()

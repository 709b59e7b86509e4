"""The parts in force in one app, shared by the modules that serve its requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flask import Flask

from ..config import Settings
from ..declare.subjects import Subjects
from ..engine import Limiter
from ..plan.plans import Plans
from .audience import AppAudience

if TYPE_CHECKING:
    from .access import AccessLists


@dataclass(kw_only=True, eq=False, repr=False)
class InForce:
    """Control and the test kit replace parts of it while the app runs, each in one assignment."""

    app: Flask
    settings: Settings
    limiter: Limiter
    plans: Plans
    """The limits. A request keeps the plan that it found first."""
    subjects: Subjects
    access: AccessLists | None
    """The allow and deny lists; ``None`` if they are empty."""
    audience: AppAudience
    """Learns of every outcome."""

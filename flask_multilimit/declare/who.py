"""The client that an entry of a list is about: a network, or a subject of a type."""

from __future__ import annotations

from typing import NamedTuple

from ..engine import ConfigurationError
from ..engine.errors import brief
from ..engine.keys import TYPE_PATTERN
from .networks import Network, network_from, usual_network


class Who(NamedTuple):
    """A network, or a subject of a type. ``str(who)`` writes it as entries do: ``203.0.113.0/24``, ``user:42``."""

    network: Network | None
    """``None`` for a subject."""
    type_name: str = ""
    """The type of the subject, such as ``user``."""
    value: str = ""
    """The subject, such as ``42``."""

    @classmethod
    def parse(cls, text: object) -> Who:
        """From ``"203.0.113.0/24"``, ``"2001:db8::7"``, ``"user:42"`` or ``"api_key:abc"``. Text that can be read as a
        network is one. A :class:`Who` is returned as it is. Raises :class:`ConfigurationError`."""
        if isinstance(text, cls):
            return text
        network = usual_network(text) if isinstance(text, str) else None
        if network is not None:
            return cls(network)
        if not isinstance(text, str) or not text.strip():
            raise ConfigurationError(f"{brief(text)}: {_REMEDY}")
        type_name, colon, value = text.partition(":")
        if not colon:
            return cls(_network_from(text))
        if type_name == "ip":
            return cls(_network_from(value))
        if type_name == "default" or not TYPE_PATTERN.fullmatch(type_name) or "+" in type_name:
            raise ConfigurationError(f"{brief(text)}: {_REMEDY}")
        return cls(None, type_name, value)

    def __str__(self) -> str:
        if self.network is None:
            return f"{self.type_name}:{self.value}"
        return str(self.network) if self.network.num_addresses > 1 else self.network.address


_REMEDY = (
    'give a network such as "203.0.113.0/24", or a subject such as "user:42" (the name of its type before the colon)'
)


def _network_from(text: str) -> Network:
    try:
        return network_from(text)
    except ConfigurationError:
        raise ConfigurationError(f"{brief(text)}: {_REMEDY}") from None

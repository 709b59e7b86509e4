"""How long text from outside may be, in characters. Longer text is refused or ignored before anything matches or keeps
it: strangers send text of any length, and what they send must cost them more than us."""

from __future__ import annotations

LONGEST_RULES = 1000
"""Rules, such as ``"100/minute; 10/second"``."""
LONGEST_DURATION = 100
LONGEST_NUMBER = 20
LONGEST_ADDRESS = 64
"""An IPv6 address with a zone and a port has fewer, but an app that trusts too many proxies gets text of any length."""
LONGEST_NAME = 500
"""An endpoint, a pattern, a rule, a limiter, an author, a reason."""
LONGEST_SUBJECT = 2000
"""A subject in a list, such as an API key. Subjects of requests may be longer: keys have their digest."""
LONGEST_MESSAGE = 10_000
"""The message to a refused client."""
LONGEST_PREFERENCE = 512
"""A header field by which a client says what it prefers. No browser sends a longer one; if one comes, the default
applies."""
LONGEST_COOKIE = 500
"""A cookie of ours."""
LONGEST_QUERY = 8192
"""The query of one of our pages."""
LONGEST_ARGUMENT = 8192
"""An argument of a command."""
LONGEST_FILE = 1 << 26
"""A file of limits."""
LONGEST_LINE = 1 << 16
"""A line of a log. Servers accept no longer request line."""

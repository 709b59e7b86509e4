"""The package's own messages to clients, in English and Chinese."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from werkzeug.datastructures import LanguageAccept
from werkzeug.http import parse_accept_header

LONGEST_REMEMBERED = 512
"""Characters of a header field. No browser sends a longer one; for such a field, the default applies."""


class Messages(NamedTuple):
    """The sentences of one language."""

    too_many: str
    failed: str
    denied: str
    banned: str
    wait_one: str
    wait_many: str
    never: str
    slot: str

    def wait(self, seconds: int) -> str:
        """When to try again."""
        return self.wait_one if seconds == 1 else self.wait_many.format(seconds=seconds)


MESSAGES = {
    "en": Messages(
        too_many="Too many requests. Please try again later.",
        failed="Rate limiting failed on the server. Please try again later.",
        denied="Access denied.",
        banned="You are banned for a while.",
        wait_one="You can try again in 1 second.",
        wait_many="You can try again in {seconds} seconds.",
        never="Waiting does not help: the request asks for more than the limit ever admits.",
        slot="You can try again when a request that is in progress has finished.",
    ),
    "zh": Messages(
        too_many="访问过于频繁,请稍候再试",
        failed="服务器限流异常,请稍候再试",
        denied="拒绝访问",
        banned="您已被暂时封禁",
        wait_one="请在 1 秒后重试。",
        wait_many="请在 {seconds} 秒后重试。",
        never="等待无济于事:此请求所需超过了限额。",
        slot="请在正在处理的请求完成后重试。",
    ),
}
"""By language."""


def messages_for(locale: str, accept_language: str) -> Messages:
    """The sentences of ``locale``; for ``auto``, in the language that a client prefers, or English."""
    if locale != "auto":
        return MESSAGES[locale]
    return MESSAGES[_preferred(accept_language) if len(accept_language) <= LONGEST_REMEMBERED else "en"]


@lru_cache(maxsize=256)
def _preferred(accept_language: str) -> str:
    """The first language in the client's order for which there are messages, whatever the region: ``zh-CN`` is
    ``zh``."""
    for tag, quality in parse_accept_header(accept_language, LanguageAccept):
        language = re.split("[-_]", tag.lower(), maxsplit=1)[0]
        if quality > 0 and language in MESSAGES:
            return language
    return "en"

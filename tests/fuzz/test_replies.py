"""Random replies of a server: a check is decided, or a StorageError; and users of Flask see only limits."""

from collections.abc import Iterator

import pytest
from flask import Flask
from hypothesis import example, given
from hypothesis import strategies as st

from flask_multilimit import MultiLimit, rate_limiter
from flask_multilimit.engine import Limiter, RedisStorage, StorageError
from support.bench import hits
from support.effort import tries
from support.liar import Liar

TIMEOUT = 0.05

numbers = st.integers(-(2**64), 2**64).map(lambda number: b":%d\r\n" % number)
scalars = numbers | st.sampled_from(
    [
        b"+OK\r\n",
        b"-ERR no\r\n",
        b"-NOSCRIPT No matching script\r\n",
        b"-MOVED 1 127.0.0.1:1\r\n",
        b"-\r\n",
        b"$-1\r\n",
        b"$3\r\nabc\r\n",
        b"$3\r\nabcd\r\n",
        b"$-9\r\n",
        b"$99999999999\r\n",
        b"$2147483647\r\n",
        b":\r\n",
        b":1.5\r\n",
        b"*-1\r\n",
        b"_\r\n",
        b"#t\r\n",
        b",1.5\r\n",
        b",nan\r\n",
        b",inf\r\n",
        b"(99999999999999999999\r\n",
        b"%1\r\n+a\r\n:1\r\n",
        b">1\r\n+message\r\n",
        b"|1\r\n+a\r\n:1\r\n",
        b"!3\r\nERR\r\n",
    ]
)
arrays = st.lists(scalars, max_size=7).map(lambda items: b"*%d\r\n%b" % (len(items), b"".join(items)))
of_the_right_length = st.lists(scalars, min_size=5, max_size=5).map(lambda items: b"*5\r\n" + b"".join(items))
replies = scalars | arrays | of_the_right_length | st.binary(max_size=30) | st.lists(arrays, max_size=3).map(b"".join)


@pytest.fixture(scope="module")
def liar() -> Iterator[Liar]:
    with Liar(lambda _: [b""]) as liar:
        yield liar


@tries()
@given(replies)
@example(b"*5\r\n:1\r\n:0\r\n:1\r\n,nan\r\n:0\r\n")
def test_random_reply_is_a_decision_or_a_storage_error(liar: Liar, reply: bytes) -> None:
    liar.answer = lambda _: [reply]
    limiter = Limiter(RedisStorage.from_url(liar.url, timeout=TIMEOUT))
    try:
        decision = limiter.check(hits())
    except StorageError:
        pass
    else:
        assert all(isinstance(number, int) for number in decision.reply)
    finally:
        limiter.close()


@tries(0.5)
@given(replies)
@example(b"*4\r\n:0\r\n:0\r\n:0\r\n,inf\r\n")
def test_users_see_only_limits_when_a_reply_is_random(liar: Liar, reply: bytes) -> None:
    liar.answer = lambda _: [reply]
    app = Flask("fuzzed")
    app.config.update(MULTILIMIT_STORAGE_URI=liar.url, MULTILIMIT_STORAGE_TIMEOUT=TIMEOUT)
    multilimit = MultiLimit(app)
    app.add_url_rule("/", "view", rate_limiter(rules="2/minute")(lambda: "ok"))

    with app.app_context():
        statuses = {app.test_client().get("/").status_code for _ in range(2)}
        multilimit.limiter.close()

    assert statuses <= {200, 429}

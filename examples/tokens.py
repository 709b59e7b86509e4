"""Tokens of a language model: nobody knows what an answer costs before it is written.

    flask --app examples/tokens run
    curl -N http://127.0.0.1:5000/chat -H 'X-Api-Key: k-ada' -d 'What is a sliding window?'
    curl http://127.0.0.1:5000/left -H 'X-Api-Key: k-ada'

Each user has 600 tokens a minute. An answer is admitted if an estimate of 50 tokens is free, and is then charged what
it really took: for the words that were sent, if the client hangs up. An answer may take more than is left. That is a
debt, and the next one is refused until it is paid.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from flask import Flask, Response, abort, request, stream_with_context

from flask_multilimit import USER, MultiLimit, Rule, current_decision, rate_limiter, settle

app = Flask(__name__)
app.config.from_prefixed_env()

USERS = {"k-ada": "ada", "k-bob": "bob"}
ESTIMATE = 50


def user() -> str | None:
    return USERS.get(request.headers.get("X-Api-Key", ""))


multilimit = MultiLimit(app, user_loader=user)


class FakeModel:
    """Answers with the words of the prompt, again and again. Each word is three tokens."""

    seconds = 0.02

    def stream(self, prompt: str) -> Iterator[tuple[str, int]]:
        """Each word, and the tokens so far, those of the prompt included."""
        words = prompt.split()[:200]
        for number, word in enumerate(words * 5, 1):
            time.sleep(self.seconds)
            yield word, 3 * (len(words) + number)


model = FakeModel()


@app.before_request
def authenticate() -> None:
    if user() is None:
        abort(401)


@app.post("/chat")
@rate_limiter(
    type=USER,
    name="tokens",
    rules=Rule(60, 600, algorithm="sliding_window_counter"),
    cost=ESTIMATE,
    settle=True,
    unit="tokens",
)
def chat() -> Response:
    prompt = request.get_data(as_text=True)

    def answer() -> Iterator[str]:
        for word, tokens in model.stream(prompt):
            settle(tokens)
            yield f"{word} "

    left = str(current_decision.remaining)
    return Response(stream_with_context(answer()), mimetype="text/plain", headers={"X-Tokens-Left": left})


@app.get("/left")
def left() -> dict[str, int]:
    (tokens,) = multilimit.peek("chat").statuses
    return {"left": tokens.remaining, "over": tokens.debt}

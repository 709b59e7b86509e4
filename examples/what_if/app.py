"""A shop whose limits were guessed: the app of the tutorial "Choose a limit from your logs"."""

from __future__ import annotations

from flask import Flask

from flask_multilimit import MultiLimit

app = Flask(__name__)
app.config["MULTILIMIT_FILE"] = "guessed.json"
MultiLimit(app)


@app.get("/search")
def search() -> str:
    return "found\n"


@app.get("/items/<int:number>")
def item(number: int) -> str:
    return f"item {number}\n"


@app.post("/login")
def login() -> str:
    return "welcome\n"

"""The smallest limited app. It keeps its quotas in this process (memory://), so nothing else has to run.

    flask --app examples/quickstart run

Then call it eleven times within twenty seconds: curl -i http://127.0.0.1:5000/update
"""

from flask import Flask

from flask_multilimit import IP, MultiLimit, rate_limiter

app = Flask(__name__)
MultiLimit(app)


@app.get("/update")
@rate_limiter(rules="1000/minute")  # everybody together
@rate_limiter(type=IP, rules="10 per 20 seconds; 100/hour")  # each client address
def update():
    return "ok\n"

"""A plugin of pytest: Flask-Limiter is the bridge for all that the tests import."""

from flask_multilimit.compat import install

install()

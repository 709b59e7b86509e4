"""Serves each request: checks its limits, and answers the client."""

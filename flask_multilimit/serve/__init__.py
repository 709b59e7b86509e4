"""Runs at each request: the check, and what the client is told."""

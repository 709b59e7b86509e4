"""Reads access logs in the formats of the usual servers, as requests in order of time."""

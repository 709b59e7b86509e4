"""Pages about a log. Each is one file that needs nothing but a browser."""

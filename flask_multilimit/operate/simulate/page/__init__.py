"""Pages of what a log says: each is one file, which needs nothing but a browser."""

"""Reports what happened, to machines and people."""

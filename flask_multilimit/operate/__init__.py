"""For the people who run an app: the command line, and what it shows."""

"""What is done at each request: the check, and what a client is told."""

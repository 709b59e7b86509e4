"""What is worked out when the app starts: which limits apply to an endpoint."""

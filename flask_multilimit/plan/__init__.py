"""Plans which limits apply to each endpoint, when the app starts."""

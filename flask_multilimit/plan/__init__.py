"""Made when the app starts: which limits apply to each endpoint."""

"""One server of Redis or Valkey."""

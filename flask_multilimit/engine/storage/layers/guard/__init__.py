"""What becomes of a check when the storage does not answer."""

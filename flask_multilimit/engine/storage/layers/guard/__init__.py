"""What happens to a check when the storage does not answer."""

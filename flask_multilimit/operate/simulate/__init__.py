"""What if: requests of the past replayed through limits, and counts that the data chooses."""

"""What if: replays past requests through limits, and finds the counts that fit them."""

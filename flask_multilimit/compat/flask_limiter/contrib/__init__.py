"""Further functions for ``key_func``."""

"""Finds problems with the limits of an app and with its storage, and says how to fix them."""

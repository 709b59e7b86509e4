"""Storages around a storage."""

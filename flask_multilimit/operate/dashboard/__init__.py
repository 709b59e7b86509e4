"""The dashboard: pages on what ``listing``, ``standing``, traffic and control tell. Nothing here decides anything."""

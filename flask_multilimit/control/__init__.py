"""Changes while the app runs: overrides, allow and deny lists, bans."""

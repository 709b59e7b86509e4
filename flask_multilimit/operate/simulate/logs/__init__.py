"""Access logs, in the formats that servers write: from files to requests in order of time."""

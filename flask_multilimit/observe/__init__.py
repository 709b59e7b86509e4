"""What happened, for machines and people."""

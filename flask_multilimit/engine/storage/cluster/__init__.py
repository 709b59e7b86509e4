"""Redis Cluster: a plan over several slots."""

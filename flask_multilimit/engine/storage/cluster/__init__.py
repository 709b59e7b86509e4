"""Redis Cluster: checks whose keys lie in several slots."""

"""The dashboard: pages that show limits, quotas, traffic and control. Nothing here decides about a request."""

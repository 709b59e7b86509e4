"""The page of a customer: what is left. It knows nothing of the dashboard, and shows a client nothing but itself."""

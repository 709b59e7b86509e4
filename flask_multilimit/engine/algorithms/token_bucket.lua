-- Token bucket: the missing tokens are the time from now to the instant of rate.lua. Twin of token_bucket.py.
algorithms.token_bucket = rate

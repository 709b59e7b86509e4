-- Token bucket: the tokens missing are what lies between now and the instant of rate.lua. Twin of token_bucket.py.
algorithms.token_bucket = rate

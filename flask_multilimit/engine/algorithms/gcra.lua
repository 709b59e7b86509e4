-- GCRA: the instant of rate.lua is the theoretical arrival time. Twin of gcra.py.
algorithms.gcra = rate

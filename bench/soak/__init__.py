"""A real server under random load, faults and flags; `python -m bench.soak`."""

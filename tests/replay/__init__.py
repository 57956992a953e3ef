"""The plans of recorded scenarios, byte for byte.

A plan is what the scheduler is for, so a change that is meant to leave behaviour alone must leave
every plan alone. Scenarios (`scenarios.py`, `scenario.py`) are played by the real scheduler over
the fake engine (`driver.py`), written down in a form of their own (`canonical.py`), and compared
with what was recorded in `traces/` (`test_replay.py`).

A change that means to alter plans records them again, `python -m tests.replay.record [name ...]`,
and says in its commit which scenarios differ and why.
"""

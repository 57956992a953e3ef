"""The main loop and what crosses its thread's border."""

"""A real server looked at from outside: the demo and what measures it."""

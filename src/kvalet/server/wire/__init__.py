"""Request bodies: what is accepted, what is refused by name, what changes nothing.

Only this package and `answers` know JSON. A field is served as made or refused with its name.
"""

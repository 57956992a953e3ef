"""How clients ask for text, one dialect a file: bodies into requests, events into answers, errors.

`dialect.py` says what a dialect is. Only this package and `routes` know JSON.
"""

"""The endpoints, grouped by who uses them."""

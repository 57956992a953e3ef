"""The endpoints, grouped by their users."""

"""Notebooks that others of the tenant may read by a link."""

"""Processes that fork: what a child's session begins with, and branches, which are made of that."""

"""Collectives between workers that their devices carry by a library of theirs."""

"""Carries out the command streams of virtual devices on real ones."""

"""Nouns of the service, exact money, calendar months and currencies; they import no other floor."""

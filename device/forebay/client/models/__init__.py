"""The types of what the services answer: a module for each service."""

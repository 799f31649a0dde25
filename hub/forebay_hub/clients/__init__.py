"""Clients that sign in from elsewhere: ``forebay login`` on somebody's own machine."""

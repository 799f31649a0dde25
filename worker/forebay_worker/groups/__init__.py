"""Devices that compute together: the processes of a session that has several, and the library by which devices make collectives."""

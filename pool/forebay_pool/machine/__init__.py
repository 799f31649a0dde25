"""The state machine: events in, instructions out; no I/O, no clock, no chance."""

"""What all parts of the state machine share: the event at hand, what it may have freed, and pure functions."""

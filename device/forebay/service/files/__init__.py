"""Files of folders that go along with programs, and come back."""

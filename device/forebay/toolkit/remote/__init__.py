"""``forebay exec``: any process, beside a device."""

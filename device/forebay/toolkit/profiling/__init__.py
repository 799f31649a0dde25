"""``forebay profile``: what calls a program makes, and what they take."""

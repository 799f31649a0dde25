"""The pool's nouns: what it knows, what may happen to it, and what it has the shell do."""

"""The pool's present, followed by its event stream, and the browsers that are told when it changes."""

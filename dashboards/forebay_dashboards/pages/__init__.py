"""The pages: one file each, with the handlers that fill its templates."""

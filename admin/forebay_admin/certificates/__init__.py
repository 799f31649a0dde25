"""An authority of the installation's own, and the certificates that it signs."""

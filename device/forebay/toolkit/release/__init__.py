"""Our packages in a virtual environment: exchanged for those of another release, and put back."""

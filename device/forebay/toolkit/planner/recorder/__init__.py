"""What a script sends to a device that computes nothing: ``script_run`` runs the script against ``null_pool`` and ``null_device``, and
``recording`` is what it sent, in memory and as a file.
"""

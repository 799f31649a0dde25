"""What runs on hosts: worker processes there and on a Ray cluster, and what drivers say of their devices."""

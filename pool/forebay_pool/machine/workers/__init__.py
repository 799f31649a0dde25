"""Workers: what they say, how they fail, and how devices and hosts are emptied of them."""

"""`forebay models`: programs that train reference models, to read, to run, and to measure devices with."""

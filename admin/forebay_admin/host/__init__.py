"""One host as a service: what ``forebay admin init`` asks, and the files and units that it writes of the answers."""

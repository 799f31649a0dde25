"""``forebay mcp``: what agents may do here, as tools of the Model Context Protocol. The extra ``mcp`` brings what it needs."""

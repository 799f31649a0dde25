"""What Forebay sets on JupyterHub: tenants, roles, scopes, managed services, and who a token belongs to."""

"""Who belongs to a tenant, and as what, as its owners decide: they invite and remove people, and give them roles."""

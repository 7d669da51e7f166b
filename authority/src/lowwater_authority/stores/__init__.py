"""Where the journal of a deployment is kept: each kind of store in a module, all in one table."""

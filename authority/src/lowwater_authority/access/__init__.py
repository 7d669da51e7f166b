"""Who may do what: principals, their permissions and limits, and the guard before the services."""

"""APIs of other databases on top of Sheaf."""

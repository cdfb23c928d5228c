"""The transformer on a mesh of eight devices against one."""

"""Files as text, notebooks as modules, modules as trees."""

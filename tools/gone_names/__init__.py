"""How `names.json` is made: reading old releases, and asking today's."""

"""How `legacy_optim/gone/names.json` is made: reading old releases, asking the installed ones."""

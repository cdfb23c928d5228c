"""Maker of `legacy_optim/gone/names.json`: reads old releases, asks the installed ones."""

"""An old checkpoint restored by the old program and by the migrated one, and how both go on."""

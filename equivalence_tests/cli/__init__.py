"""The commands `check`, `compare`, `check-resume` and `prove`: one file each."""

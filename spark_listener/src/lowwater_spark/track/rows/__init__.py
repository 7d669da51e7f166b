"""What a row is to a stage: its key range, its event time and stamp, and whether it is late."""

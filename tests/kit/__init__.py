"""Tools that tests share, and no wheel holds: stores in memory, whose faults are drawn or planned."""

"""What tests are made with, and no wheel holds: stores in memory, whose faults are drawn or planned."""

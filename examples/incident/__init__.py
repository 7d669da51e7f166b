"""The flights pipeline with a process for each worker, of which an incident can pause one."""

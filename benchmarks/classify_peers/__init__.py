"""Who labels SST-2 beside us, each in a process of its own."""

"""Drives the runtime with real processes: launch, transports, the replicated layout and the DDP baseline."""

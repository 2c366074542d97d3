"""The environment of worker processes."""

WORKER_ENVIRONMENT = {
    # Activations of a few megabytes are allocated anew each step; left to itself, glibc hands them
    # back to the system and every step pays for the page faults.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
    "MALLOC_TOP_PAD_": str(1 << 26),
}

"""Name the kernel: reproduce a symptom, sweep every kernel by replay and shadow, confirm by swap."""

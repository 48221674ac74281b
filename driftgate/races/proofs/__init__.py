"""What holds for all shapes: two symbolic threads, and an SMT solver."""

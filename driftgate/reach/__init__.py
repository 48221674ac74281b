"""Where chunked prefill breaks though it repeats itself: edges, histories of a cache, memory that nobody may read."""

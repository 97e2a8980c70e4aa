"""Plan a study without Ray: what the hardware holds, what runs where, and what it costs."""

"""The deterministic simulator: everything that spotd talks to, in one process and one thread."""

"""What makes it fast: threads, BLAS, products of few rows, memory. It changes results by rounding at most."""

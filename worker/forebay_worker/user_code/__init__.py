"""What programs bring of their own: kernels in Triton, and whole programs of JAX."""

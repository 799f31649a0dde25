"""What tables, sums and charts hold before a template draws them. No I/O."""

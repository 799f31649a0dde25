"""What was typed into a form, what it means, and what is wrong with it. No I/O."""

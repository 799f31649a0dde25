"""What changes the books, each in the writer's transaction, and the store that runs it there."""

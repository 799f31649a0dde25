"""What is said and how it is spelled: amounts, times, codes and causes, in the reader's language. No I/O."""

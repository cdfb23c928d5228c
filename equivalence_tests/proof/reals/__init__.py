"""What a graph computes as functions of real numbers, in normal form."""

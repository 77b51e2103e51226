"""How the batch-norm family computes; imported only by runs that use it."""

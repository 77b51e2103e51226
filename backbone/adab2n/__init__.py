"""AdaB²N and the weighted batch normalization under it. This package imports torch only."""

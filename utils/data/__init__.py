"""Data on their way through a run: streams, augmentation, the memory buffer, addressed randomness."""

"""The paper's Section 3.2 as code: whose batches the running statistics are made of. Proofs: docs/theory.md."""

"""Text that is written by filling masks, in any order, in passes. docs/diffusion.md describes it."""

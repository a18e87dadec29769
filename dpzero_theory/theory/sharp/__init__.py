"""The sharpened theorem: `proof.md` states and proves it, and the modules here compute its certificates."""

"""Which visual tokens are recomputed: one file a policy (or a small family of them).
Measurements come in, slots leave; arithmetic only."""

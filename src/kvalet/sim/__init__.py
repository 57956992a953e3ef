"""The scheduler without a model: the real one, over an engine that is a cost model."""

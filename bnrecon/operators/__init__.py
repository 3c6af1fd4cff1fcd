"""The feature matrix M as an operator that is never formed: Khatri-Rao products, their eliminated and structured forms."""

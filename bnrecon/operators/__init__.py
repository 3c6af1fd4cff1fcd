"""Feature matrices as operators that are never formed: Khatri-Rao, eliminated, structured."""

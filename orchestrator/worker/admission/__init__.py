"""Admission: a worker proves that it computes the same bits as the others."""

//! What NVML offers and its wrapper does not.

"""Laws: what must hold in every run of a protocol."""

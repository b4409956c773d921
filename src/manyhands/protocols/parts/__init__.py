"""Parts that several protocols are made of."""

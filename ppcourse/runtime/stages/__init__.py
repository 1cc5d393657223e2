"""One stage on its rank: forward, B or I and W, and what is kept in between."""

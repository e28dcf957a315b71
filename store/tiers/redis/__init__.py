"""The tier shared by machines: Redis or Valkey, behind deadlines and a breaker."""

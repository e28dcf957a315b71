"""Many requests share one model: worker, scheduler, start-up, gate, shadow check, admin calls.
Requests come in from a transport, events leave."""

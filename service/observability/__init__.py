"""What the service says about itself: metrics, logs, traces, the audit trail."""

"""What people watch a server with: a dashboard for Grafana, alerts for Prometheus."""

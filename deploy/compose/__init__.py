"""Two servers, the router, Prometheus and Grafana on one machine, by docker compose."""

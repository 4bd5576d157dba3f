"""Metrics for Prometheus and Grafana: the exposition, alert rules (rules.yml) and a board."""

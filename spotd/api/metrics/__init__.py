"""What is shipped for Prometheus and Grafana: alert rules (rules.yml) and a board."""

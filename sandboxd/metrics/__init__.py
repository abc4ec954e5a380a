"""What the daemon tells of itself to Prometheus.

Instruments are counted into on the hot path; figures are gathered when somebody asks; both together
become families, and families become text.
"""

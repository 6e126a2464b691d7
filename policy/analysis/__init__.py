"""Questions about policies: findings, differences, escalations, who can do what."""

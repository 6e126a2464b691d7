"""What CDAP keeps, as policy documents: its own grants, and those in Apache Ranger."""

from policy.systems.cdap.importer import csv_grants, ranger

SOURCES = {"cdap": csv_grants.SOURCE, "ranger": ranger.SOURCE}

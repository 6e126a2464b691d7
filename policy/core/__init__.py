"""The data that decisions are made of: requests, documents, grants, facts, decisions. No rules of any system."""

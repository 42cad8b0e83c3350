"""The paper's Sections 4 and 5: exact worlds, claims, learned agents and page."""

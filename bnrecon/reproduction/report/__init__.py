"""A report: studies as one HTML file that needs nothing else, made of what is finished."""

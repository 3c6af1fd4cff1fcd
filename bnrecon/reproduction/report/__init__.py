"""A report: the finished results of studies as one self-contained HTML file."""

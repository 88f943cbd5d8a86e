"""The benchmarks, one file for each row of the table of targets, or for rows that share their sides."""

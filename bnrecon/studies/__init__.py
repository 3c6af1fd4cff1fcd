"""The papers' studies: which runs make each cell of a table, and the paper's number beside ours."""

"""What TVM's code generators emit, read line by line."""

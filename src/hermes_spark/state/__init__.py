"""What is kept: records in a journal (the truth), AgentStates in a store (a cache), and small objects in storage."""

"""Generation: engines that roll out prompt groups, and what turns their tokens into rollouts."""

// Package balancing is what the root says about the placement of chunks: the balancer's
// settings, which shards are to be emptied, and what the active balancer did last. Commands
// write it and balancers follow it; neither knows the other.
//
//	record balancer "balancer"     {stopped, activeWindow, timeZone, policy, by, at}
//	record balancer "round"        {holder, address, rounds, inRound, started, failures: [...]}
//	record balancer "drain/SHARD"  {by, at}
//
// The first is, with its id, the document of config.settings that MongoDB has under that
// name. What is not recorded has its default: the balancer runs, at any time.
//
// The package may change with any release.
package balancing

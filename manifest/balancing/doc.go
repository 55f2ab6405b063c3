// Package balancing is what the root says about the placement of chunks: the balancer's
// settings, which shards are to be emptied, and what the active balancer did last. Commands
// write it and balancers follow it; neither knows the other.
//
//	record balancer "balancer"     {stopped, activeWindow, timeZone, policy, by, at}
//	record balancer "round"        {holder, address, rounds, inRound, started, failures: [...]}
//	record balancer "drain/SHARD"  {by, at}
//	record setting  "chunksize"    {value: megabytes}
//	record setting  "autosplit", "automerge"   {enabled}
//
// The first and the settings are, with their ids, the documents of config.settings, in
// MongoDB's words. What is not recorded has its default: the balancer runs, at any time.
//
// The package may change with any release.
package balancing

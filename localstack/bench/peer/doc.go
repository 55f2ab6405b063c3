// Command peer measures granary beside PostgreSQL with a jsonb table: the same documents, on
// the same disk, through the Go driver of each, in turns within one run, so that whatever
// else the machine does disturbs both.
//
//	go run . -granary /path/to/granary -results ../RESULTS.md
//
// It is a module of its own: the product does not depend on a driver of its peer. It needs
// the server programs of PostgreSQL (initdb and postgres, in PATH or below
// /usr/lib/postgresql), and starts one of its own in a temporary directory, durable as it
// comes: fsync and synchronous_commit are on. Run by root it starts it as the user postgres.
//
// # What is compared
//
//	insert   batches of 1000 documents of about 300 bytes, each batch durable when it is
//	         answered: an unordered insertMany, and one INSERT of a thousand rows, which was
//	         faster than a thousand INSERTs in a pipeline
//	lookup   one document by its key, eight clients at once, everything in memory
//
// Every figure is the median over the rounds of documents per second, and the ratio is the
// median of the rounds' ratios.
package main

// Package e2e drives the real binary with real clients: mongosh, the Go driver, kill -9.
//
// It holds tests only. They build cmd/granary once, run it as a process on a scratch
// directory, and look at what clients were told, what the next process serves, and what
// granary fsck says of the directory in between.
//
// Tests that need more than Go skip with a sentence that says what is missing; with
// GRANARY_REQUIRE=1 they fail instead. GRANARY_MONGOSH names the mongosh program,
// GRANARY_VEGA the data folder of the npm package vega-datasets. The long forms are flags:
//
//	go test ./localstack/e2e -run TestKillNine -rounds 100
package e2e

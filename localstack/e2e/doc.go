// Package e2e drives the real binary with real clients: mongosh, the Go driver, kill -9.
//
// It holds tests only. They build cmd/granary once, run it as a process on a scratch
// directory, and look at what clients were told, what the next process serves, and what
// granary fsck says of the directory in between.
//
// A cluster in a test is routers and writers, each a process that can be killed, stopped,
// woken, told to end, and started again at its address, on a store of their own: a directory,
// or a bucket of the S3 server that GRANARY_S3SERVER names (localstack/s3server), through the
// driver that GRANARY_S3DRIVER says, s3 or minio.
//
// Four things are held against what clients were told. The account of the parent (load, inserts):
// every acknowledged insert is there once. Counters: every acknowledged increment counts once.
// Histories (documents, with localstack/history): what clients saw of a document could have
// happened in one order; what an operation without an answer did is looked up in a copy of
// the log, which is read while the cluster runs. Models (testdata/drivers): scripts of other
// drivers keep what must be there beside it.
//
// Partitions are made of network namespaces of this machine (nets), and need root.
//
// Tests that need more than Go skip with a sentence that says what is missing; with
// GRANARY_REQUIRE=1 they fail instead. GRANARY_MONGOSH names the mongosh program,
// GRANARY_VEGA the data folder of the npm package vega-datasets, GRANARY_NODE a folder
// node_modules with the npm package mongodb, GRANARY_PYMONGO a Python with PyMongo, which is
// never required. The long forms are flags:
//
//	go test ./localstack/e2e -run TestKillNine -rounds 100
//	go test ./localstack/e2e -run TestKillsOfRoutersAndWriters -rounds 1000 -lease 5s -timeout 4h
//	go test ./localstack/e2e -run TestChunksChangeUnderLoad -changes 1000 -timeout 1h
//	go test ./localstack/e2e -run TestStoppedProcessesTellNoLies -rounds 300 -timeout 4h
//	go test ./localstack/e2e -run TestDocumentsAreLinearizable -rounds 100 -ops 500000 -timeout 4h
//	go test ./localstack/e2e -run TestEveryInsertIsThereOnce -rounds 100 -timeout 1h
//	go test ./localstack/e2e -run TestRetriedWritesHappenOnce -cases 1000 -timeout 1h
//	go test ./localstack/e2e -run TestPartitions -partition 5m -timeout 2h
//	go test ./localstack/e2e -run TestSnippets -splits 5s
//	go test ./localstack/e2e -run TestTheStoreIsAway -away 10m -timeout 1h
package e2e
